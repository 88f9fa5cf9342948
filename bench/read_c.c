/* A topic read by librdkafka in C, as the ceiling beside our reader: read_c SERVERS TOPIC READERS [OPTION=VALUE ...]

   Runs come on stdin, a line "PARTITION START STOP" each. READERS 0: one consumer, every run assigned at once, each of
   another partition. READERS n: n threads with a consumer each, which take the runs in order, one assignment per run.
   Each payload is copied once, into memory of that reader, as our reader does; headers are left alone. Prints
   "BYTES RECORDS SECONDS". librdkafka is the one in confluent_kafka's wheel, which has no headers: what is used of
   rdkafka.h is declared here. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
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
typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *private_;
} rd_kafka_topic_partition_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;

enum { CONSUMER = 1, PARTITION_EOF = -191, TIMED_OUT = -185 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
int rd_kafka_poll_set_consumer(rd_kafka_t *);
rd_kafka_message_t *rd_kafka_consumer_poll(rd_kafka_t *, int);
void rd_kafka_message_destroy(rd_kafka_message_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
rd_kafka_topic_partition_t *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
void rd_kafka_topic_partition_list_destroy(rd_kafka_topic_partition_list_t *);
int rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
const char *rd_kafka_err2name(int);

typedef struct {
    int32_t partition;
    int64_t start, stop;
} run_t;

enum { MOST_RUNS = 1 << 16, SLAB = 64 << 20, QUIET_MS = 30000 };
static run_t runs[MOST_RUNS];
static int count;
static atomic_int next_run;
static atomic_llong bytes, records;
static const char *topic;
static char **arguments;
static int argument_count;

static void die(const char *what, const char *why) {
    fprintf(stderr, "read_c: %s: %s\n", what, why);
    exit(1);
}

static rd_kafka_t *consumer(void) {
    char said[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "bootstrap.servers", arguments[1], said, sizeof said)) die("bootstrap.servers", said);
    for (int k = 4; k < argument_count; k++) {
        char *name = strdup(arguments[k]), *value = strchr(name, '=');
        if (!value) die(name, "no OPTION=VALUE");
        *value++ = 0;
        if (rd_kafka_conf_set(conf, name, value, said, sizeof said)) die(name, said);
        free(name);
    }
    rd_kafka_t *made = rd_kafka_new(CONSUMER, conf, said, sizeof said);
    if (!made) die("rd_kafka_new", said);
    rd_kafka_poll_set_consumer(made);
    return made;
}

/* Takes records until every assigned run is done: runs[first..last-1], each of another partition. */
static void read_runs(rd_kafka_t *rk, int first, int last, char *slab) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(last - first);
    int64_t highest = 0, got = 0, taken = 0, size = 0;
    for (int k = first; k < last; k++) {
        rd_kafka_topic_partition_list_add(list, topic, runs[k].partition)->offset = runs[k].start;
        if (runs[k].partition > highest) highest = runs[k].partition;
    }
    int *of = malloc((highest + 1) * sizeof *of);
    int64_t *want = malloc((highest + 1) * sizeof *want);
    memset(of, -1, (highest + 1) * sizeof *of);
    for (int k = first; k < last; k++) of[runs[k].partition] = k, want[runs[k].partition] = runs[k].start;
    if (rd_kafka_assign(rk, list)) die("assign", "failed");
    rd_kafka_topic_partition_list_destroy(list);
    for (int left = last - first; left;) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, QUIET_MS);
        if (!m) die("poll", "nothing came");
        if (m->err && m->err != PARTITION_EOF && m->err != TIMED_OUT) die("poll", rd_kafka_err2name(m->err));
        int p = m->partition;
        if (p >= 0 && p <= highest && of[p] >= 0 && !(m->err && m->err != PARTITION_EOF)) {
            int64_t stop = runs[of[p]].stop;
            int mine = m->offset >= want[p] && want[p] < stop;
            if (mine && !m->err && m->offset < stop) {
                if (got + (int64_t)m->len > SLAB) got = 0;
                memcpy(slab + got, m->payload, m->len);
                got += m->len, size += m->len, taken++;
            }
            if (mine) {
                want[p] = m->err ? m->offset : m->offset + 1;
                if (want[p] >= stop) left--;
            }
        }
        rd_kafka_message_destroy(m);
    }
    free(of), free(want);
    atomic_fetch_add(&bytes, size), atomic_fetch_add(&records, taken);
}

static void *work(void *all) {
    rd_kafka_t *rk = consumer();
    char *slab = malloc(SLAB);
    if (all) read_runs(rk, 0, count, slab);
    else
        for (int k; (k = atomic_fetch_add(&next_run, 1)) < count;) read_runs(rk, k, k + 1, slab);
    return NULL; /* the consumer ends with the process */
}

int main(int argc, char **argv) {
    if (argc < 4) die("arguments", "SERVERS TOPIC READERS [OPTION=VALUE ...]");
    arguments = argv, argument_count = argc, topic = argv[2];
    int readers = atoi(argv[3]), threads = readers ? readers : 1;
    long long partition, start, stop;
    while (scanf("%lld %lld %lld", &partition, &start, &stop) == 3) {
        if (count == MOST_RUNS) die("runs", "too many");
        if (start < stop) runs[count++] = (run_t){partition, start, stop};
    }
    struct timespec a, b;
    pthread_t *thread = calloc(threads, sizeof *thread);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int k = 0; k < threads; k++) pthread_create(&thread[k], NULL, work, readers ? NULL : argv);
    for (int k = 0; k < threads; k++) pthread_join(thread[k], NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%lld %lld %.6f\n", (long long)bytes, (long long)records,
           b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9);
    return 0;
}
