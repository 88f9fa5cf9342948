"""Files of records one behind the other, each in a frame: TFRecord, Mosaic's MDS, MXNet's RecordIO.

What they share is here too: an index of where records lie, a reader of whole records, and a source whose members are
what a format finds in each.
"""
