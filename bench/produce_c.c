/* Records into a topic by librdkafka in C, as the ceiling beside our producer:
   produce_c SERVERS TOPIC PARTITIONS [OPTION=VALUE ...]

   Values come on stdin, each behind its length in eight bytes, and are all in memory before the clock begins; they go
   to the partitions in turn, each with a header "label", its number in decimal text. A full queue is waited for by
   polling. The clock stops when every delivery has been reported. Prints "BYTES RECORDS SECONDS"; ends with 1 where one
   failed.
   librdkafka is the one in confluent_kafka's wheel, which has no headers: what is used of rdkafka.h is declared here. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct {
    int err;
    void *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} rd_kafka_message_t;

enum { PRODUCER = 0, QUEUE_FULL = -184, F_COPY = 2, QUIET_MS = 60000 };
enum { V_END, V_TOPIC = 1, V_PARTITION = 3, V_VALUE = 4, V_MSGFLAGS = 7, V_HEADER = 9 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
int rd_kafka_producev(rd_kafka_t *, ...);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);
const char *rd_kafka_err2name(int);

static long long delivered, bytes;

static void die(const char *what, const char *why) {
    fprintf(stderr, "produce_c: %s: %s\n", what, why);
    exit(1);
}

static void report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk, (void)opaque;
    if (m->err) die("delivery", rd_kafka_err2name(m->err));
    delivered++, bytes += m->len;
}

int main(int argc, char **argv) {
    if (argc < 4) die("arguments", "SERVERS TOPIC PARTITIONS [OPTION=VALUE ...]");
    char said[512];
    int partitions = atoi(argv[3]);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "bootstrap.servers", argv[1], said, sizeof said)) die("bootstrap.servers", said);
    for (int k = 4; k < argc; k++) {
        char *name = strdup(argv[k]), *value = strchr(name, '=');
        if (!value) die(name, "no OPTION=VALUE");
        *value++ = 0;
        if (rd_kafka_conf_set(conf, name, value, said, sizeof said)) die(name, said);
        free(name);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, report);
    size_t room = 1 << 16, count = 0;
    char **values = malloc(room * sizeof *values);
    uint64_t *sizes = malloc(room * sizeof *sizes), size;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        if (count == room) {
            room *= 2;
            values = realloc(values, room * sizeof *values), sizes = realloc(sizes, room * sizeof *sizes);
        }
        sizes[count] = size, values[count] = malloc(size ? size : 1);
        if (fread(values[count++], 1, size, stdin) != size) die("stdin", "cut off");
    }
    rd_kafka_t *rk = rd_kafka_new(PRODUCER, conf, said, sizeof said);
    if (!rk) die("rd_kafka_new", said);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (size_t k = 0; k < count; k++) {
        char label[32];
        int length = snprintf(label, sizeof label, "%zu", k), err;
        while ((err = rd_kafka_producev(rk, V_TOPIC, argv[2], V_PARTITION, (int32_t)(k % partitions), V_MSGFLAGS,
                                        F_COPY, V_VALUE, (void *)values[k], (size_t)sizes[k], V_HEADER, "label",
                                        (void *)label, (long)length, V_END)) == QUEUE_FULL)
            rd_kafka_poll(rk, 100);
        if (err) die("produce", rd_kafka_err2name(err));
        rd_kafka_poll(rk, 0);
    }
    if (rd_kafka_flush(rk, QUIET_MS)) die("flush", "not all were delivered");
    clock_gettime(CLOCK_MONOTONIC, &b);
    if (delivered != (long long)count) die("count", "not every delivery was reported");
    printf("%lld %lld %.6f\n", bytes, delivered, b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9);
    return 0; /* the producer ends with the process */
}
