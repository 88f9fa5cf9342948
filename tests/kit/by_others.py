"""Small files as the formats' own libraries wrote them, deflated, in base64.

tensorflow.tfrecord: `tf.io.TFRecordWriter` of tensorflow-cpu 2.21.0, three `tf.train.Example` of n = 0, 1, 2:
    image/encoded (a JPEG of 8 x 8), image/class/label n - 1, image/object/bbox [0.25, 0.5, n + 0.5],
    ids range(-1, 9 n), text "é n".
mxnet.rec: `MXIndexedRecordIO` of mxnet 1.9.1: IRHeader(0, 3.0, 7, 9) and b"abc"; labels [1.5, -2], id 8 and "wxyz", the
    mark of a frame, "tail"; label -1.0, id 9 and the mark twice, "12345"; label 4.0, id 10 and nothing.
mds: `MDSWriter` of mosaicml-streaming 0.13.0, three samples of n = 0, 1, 2 in two shards with sha1 and xxh64:
    image (bytes, a JPEG of 8 x 8), label (int) n - 1, caption (str) "é n", x (ndarray:float32:3) n, n + 1, n + 2,
    a (ndarray) int32 0..5 as (2, 3), b (ndarray:int16) -n as (2, 2), id (uint16) 1000 n, f (float64) n / 4,
    meta (json) {"n": n}, i (str_int) -n, big (str_float) n / 8, d (str_decimal) 1.5.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

FILES = {
    "tensorflow.tfrecord": (
        "eNozYmYAAznPp65c69m4lLkEM3MT01P1k3MSi4v1cxKTUnOE+KR4uLj+wwAjlypMUX5SVmpyiX5SUn6FkIAQHxcPA0ODHdA0exDmEuVizkwp"
        "xtAtwMVSklpRIsTBxcbFcnilggHXdlYuXoiBqXnJ+SmpKUJLWbkWsXLNZ/1/4/8DBgEvN083BkYg0GHUYWD4f5vBmYEJxGUEkUwgwMIMIllZ"
        "WJhZ2FjZ2MCYnZMDiNnZ2Di4OTi5QADI4uHm4gFxQIZAtDKxMjOzcrGzsXORDP4fYBDkYABCZkYlBiZBRmZBxv9HGOQZGBhZwc5jZIACRiZm"
        "FlY2dqAzuIEKtgoAnc/MDHQ0K9DFQNlaoDwDiyCrkKKhI5twYCK7UqGIUePEhRzKThsPigZd/KBinFTUxMklJi4hKaWqpq6hqWViamZuYWnl"
        "7OLq5u7h6RUcEhoWHhEZlZySmpaekZlVXFJaVl5RWdXc0trW3tHZNWnylKnTps+YOWvR4iVLly1fsXLVps1btm7bvmPnrkOHjxw9dvzEyVOX"
        "Ll+5eu36jZu3Hj56/OTps+cvXr76+Onzl6/fvv/4+QvkL0YGZkYYwOovQaC/mEBxwA7yFyNTOUiBIAuroiGbkGMge2KhsJJRI4eI08SFGw9y"
        "KhsHfRBNKrrIJaZi8lD1I8hrYJ8R57EmsnwG9xjCX7cYeJgZgZHHLAhMtX8W/WdoX1B/0Hv/SyV5WfsPb1/b/5nsKhLe+zbrP4Px7/MX9y1u"
        "+s8wP/A/w4Hwn/L/bx6azytgCc1BE8M73Li2sXFJYctBrFLMXIwMRGWcA/ZccpCMIy4lyiWMyDjw0MbIQYZc+zBy0BpWrpWsXMtGc9BoDqJn"
        "Dvop/E9+638G1rD/DIuX/2c4Le/8n+GJlsaiffy/i63+MyyYNf+HzP4zfy7/TX4k/4tn9X+GZvV/6f9vLlfIS7OCZiSOo5G+XNvxZSTiaiAF"
        "By51SEZSkJLjksGSkYCBzsPLxy8giJGjjLi2YeSoJaxcC1m55o3mqNEcRc8c9SH/R0/2P67c/wwuxg/c/wlLXf/PoPtiUdffyf8U2xnqL+ya"
        "f+c/w5nPdXu7/5XV/7+5+rCRPAALMRBc"
    ),
    "mxnet.rec": (
        "eNrjUr5+TpoBBhwc2KEsTiidmJTMwAVUo8LAoMAEFeNgQAcH7EFEeUVlFUgtCwNDQkliZg6ILQHUB1HTsJ8TTRdIHmQpiGYF6jE0MjYxhYpL"
        "wFU1OHCh6QMAu+4Ykw=="
    ),
    "mds/index.json": (
        "eNrtUslOwzAQ/ZXIZ4S818mvIFRNYrs1ylLFKbRU/Xc8TgIFxIUbEjk4s3jevBm/C4l7GG0kVfFwIc3QHrt+6/pmsKHf5SjpLYwjnMldsZpV"
        "6CemMRCncevbAabFWWPWNaGDFt2c1nLNpFI0j+8Q9XlyEY0l8xSH/rZXrhe8EuQxRReGPXRuZgcZIx9hh78GDlOYIWzun7Hzkf3Ea+fQaKF2"
        "mWHnpoxyuu0Qw+vcoT+27V3x02lWg3+LMD7DdYfRxYiUqiVD/DB2aWdV6m3z7HuI+2Wg9B4ssznt09YQYoSXrYXEsSoupIbocHoszk93T/G7"
        "X4DmbVYFp7S8xb3MuKlIqNKXwlhVclZ7WXuWrnrFSxBagCwZ41LWln5wSEWqBq/UptTgDRPakOsV3xO6Qzu3Qy9tbNuGLuBgXFKaYs9uXCbH"
        "G6/hsA6Ci0gQ/5L7s5JjXyXHOP9Bcqgvw5wReuN9U7vGqQ03VFIwUlkqPWfOatd8kpzgG6q0sCXjYJTmXyXHfiW5x883rm9I8nvc"
    ),
    "mds/shard.00000.mds": (
        "eNpjYmBgOMHIwHCWhYHhJjsDQ7VScn5OaW5efGpecn5KZl56sZKVQrRSXkpiUVFipZKOAoxplZlXYmgGEiguKYpPy8lPLIFyYGIpqcmZuYk5"
        "IC5Y2swEJgPUCmKWwo1IqixJLQYxoDJZxfl5yHaB9RsbWRkrxQJFoS7MS8xNhbguEWwGmMhMB1HJiQUlmRAjUsD2g80GE2A+0F3pqSBGTmJS"
        "KtiFuaklYFMqkG0ozqyC2JBXmpOjo4CLtIAxjDBEDI0gxuUWFKUWF4OcZAWVUUrLL8oFhpkV0O4UsN8zEoszoB4qzkg0BLumIgMYaiAjQE6J"
        "z8nMzQTpMDIxMACKlaUWQY00qpUBxiM3EDMDMQuUBkYrQy8TAwMHkFbkYAIJgcWYkNSxAjEHE0gEDAz0DA6vVDAw1DOFizAw/L/x/wGDgJeb"
        "pxsDIyPICCDx/zaDMwMHGxs7GysHOzs7JycHF48ILw83N4+kkDC/iKyUvJyslIyMgoqeuoKSjrKMjIa5po6BoYmJiby6pa2FkY2esYkRyBBG"
        "Tk5OHm4eCV5eCSNFGUUjksH/AwyCHEA/cjAzKjEwCTIyCzL+P8IgD3QnKyMYwHzCyMTMwsrGzsHJxQ1UsFWAgYmRmZmJhZmVlQUYEoy1QHkG"
        "FkFWIUVDRzbhwER2pUIRo8aJCzmUnTYeFA26+EHFOKmoiZNLTFxCUkpVTV1DU8vE1MzcwtLK2cXVzd3D0ys4JDQsPCIyKjklNS09IzOruKS0"
        "rLyisqq5pbWtvaOza9LkKVOnTZ8xc9aixUuWLlu+YuWqTZu3bN22fcfOXYcOHzl67PiJk6cuXb5y9dr1GzdvPXz0+MnTZ89fvHz18dPnL1+/"
        "ff/x8xfIX4wMzIwwgNVfgkB/MbGwMLOwg/zFyFQOUiDIwqpoyCbkGMieWCisZNTIIeI0ceHGg5zKxkEfRJOKLnKJqZg8VP0I8hrYZ8R5rIks"
        "n8E9hvDXLQYeZkZg5DELMtgzfOr/4VsT/p/B2W7rf4bGT/8ZPoYEuqaWVclMfFP//+Z/KKhWAiV8g1pIGDTYAwkHWCZgRcoEoKQ9kbhMADPa"
        "QM/QyBSYDQzh2eCCva7hC+bRfDCaD+iYD57YP0z/cfxfs/xPXf7/DIKuIuHi21b+Of/e5v2a0H/p3zf/vwmLUUheMKyF5QMgcgAA1s9gbQ=="
    ),
    "mds/shard.00001.mds": (
        "eNpjZGBgOMLIwHCWhYGhWik5P6c0Ny8+NS85PyUzL71YyUohWikvJbGoKLFSSUcBxrTKzCsxNAMJFJcUxafl5CeWQDkwsZTU5MzcxBwQFyxt"
        "ZgKTAWoFMUvhRiRVlqQWgxhQmazi/Dxku8D6jY2sjJVigaJQF+Yl5qZCXJcINgNMZKaDqOTEgpJMiBEpYPvBZoMJMB/orvRUECMnMSkV7MLc"
        "1BKwKRXINhRnVkFsyCvNydFRwEVawBhGGCKGRhDjcguKUouLQU6ygsoopeUX5QLDzApodwrY7xmJxRlQDxVnJBqCXVORAQw1kBEgp8TnZOZm"
        "gnQYmRgYAMXKUougRhrVygDjkBuIWaCYGYiZgLgfSHAAaUUOJpAQAyNUnBmqjhWIOZiY/v2HQAM9I9PDKxWMDPVMGcDggb2u0QX2/zf+P2AQ"
        "8HLzdGNgZAQZAiT+32ZwZuBgY2NnY+VgZ2fn5OTg4hHh5eHm5pEUEuYXkZWSl5OVkpFRUNFTV1DSUZaR0TDX1DEwNDExkVe3tLUwstEzNjEC"
        "GcLIycnJw80jwcsrYaQoo2hEMvh/gEGQA+hLDmZGJQYmQUZmQcb/Rxjkge5kZQQDBihgZGJmYWVj5+Dk4gYq2CrAwMTIzMzEwszKygIMC8Za"
        "oDwDiyCrkKKhI5twYCK7UqGIUePEhRzKThsPigZd/KBinFTUxMklJi4hKaWqpq6hqWViamZuYWnl7OLq5u7h6RUcEhoWHhEZlZySmpaekZlV"
        "XFJaVl5RWdXc0trW3tHZNWnylKnTps+YOWvR4iVLly1fsXLVps1btm7bvmPnrkOHjxw9dvzEyVOXLl+5eu36jZu3Hj56/OTps+cvXr76+Onz"
        "l6/fvv/4+QvkL0YGZkYYwOovQaC/mFhYmFnYQf5iZCoHKRBkYVU0ZBNyDGRPLBRWMmrkEHGauHDjQU5l46APoklFF7nEVEweqn4EeQ3sM+I8"
        "1kSWz+AeQ/jrFgMPMyMw8pgFGewZDv5naGv5mP6X+Uv878/6/xlkFnVpX/t39lC9kvHz6cX/b8IitFoJkviBTAcgAuIGBwA3OXVc"
    ),
}


def written_to(folder: Path) -> Path:
    """All of them under the folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(text)))
    return folder
