/* kafka.c with a broker of its own: messages that it makes up, each with its bytes in memory of just their size.

   For the sanitizers, which see every byte that is read or written beside what kafka.c was told of; and each row is
   compared with the message that belongs there. argv[1]: how many turns. It ends with 0 where all is right. */
#include <stdio.h>
#include <stdlib.h>

#include "kafka.c"

enum { MESSAGES = 60, HEADERS = 20, ROWS = 40, NAMES = 4, SENTINEL = 0x5a };

typedef struct {
    char *name;
    uint8_t *value;
    size_t size;
} header_t;

typedef struct {
    message_t message;
    header_t headers[HEADERS];
    int header_count, is_message, handed_out;
} event_t;

static event_t events[MESSAGES];
static int next_event, event_count, alive, queues;
static uint64_t state;

static uint32_t rnd(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

#define CHECK(what) \
    do { \
        if (!(what)) fprintf(stderr, "line %d: %s\n", __LINE__, #what), exit(1); \
    } while (0)

static uint8_t *bytes(size_t size) {
    uint8_t *made = malloc(size ? size : 1);
    for (size_t k = 0; k < size; k++) made[k] = (uint8_t)rnd(256);
    return made;
}

static header_t header(const char *name) {
    static const char *const texts[] = {"7", "000000000000000012", "1234567890123456789", "-4", "x", "", "99a"};
    header_t made = {malloc(strlen(name) + 1), NULL, 0};
    strcpy(made.name, name);
    if (!rnd(5)) return made; /* null */
    const char *text = texts[rnd(7)];
    made.size = rnd(2) ? strlen(text) : rnd(30);
    made.value = bytes(made.size);
    if (made.size <= strlen(text)) memcpy(made.value, text, made.size);
    return made;
}

static void make_events(void) {
    static const char *const names[] = {"a", "b", "label", "aa", "", "\xff\xfe"};
    int64_t offset = rnd(4);
    next_event = 0, event_count = (int)rnd(MESSAGES);
    for (int n = 0; n < event_count; n++) {
        event_t *e = &events[n];
        memset(e, 0, sizeof *e);
        e->is_message = rnd(12) != 0;
        e->message.offset = offset;
        offset += rnd(6) ? 1 : rnd(4);
        if (rnd(8)) e->message.payload = bytes(e->message.len = rnd(3) ? rnd(2) * rnd(50) : rnd(9000));
        if (rnd(3)) e->message.key = bytes(e->message.key_len = rnd(20));
        e->header_count = (int)rnd(HEADERS);
        for (int k = 0; k < e->header_count; k++) e->headers[k] = header(names[rnd(6)]);
    }
}

static void *f_poll(void *queue, int milliseconds) {
    CHECK(queue == &queues && milliseconds >= 0);
    if (next_event == event_count || (!milliseconds && !rnd(6))) return NULL;
    event_t *e = &events[next_event++];
    e->handed_out = 1, alive++;
    return e;
}
static int f_type(const void *event) { return ((const event_t *)event)->is_message ? FETCHED : 8; }
static const message_t *f_message(void *event) {
    CHECK(((event_t *)event)->is_message);
    return &((event_t *)event)->message;
}
static void release(event_t *e) {
    free((void *)e->message.payload), free((void *)e->message.key);
    for (int k = 0; k < e->header_count; k++) free(e->headers[k].name), free(e->headers[k].value);
    e->message.payload = e->message.key = NULL, e->header_count = 0;
}
static void f_destroy(void *event) {
    CHECK(((event_t *)event)->handed_out == 1);
    ((event_t *)event)->handed_out = 2, alive--;
}
static int32_t f_headers(const message_t *m, void **headers) {
    if (!((const event_t *)m)->header_count) return -1;
    *headers = (void *)m;
    return 0;
}
static int32_t f_header(const void *headers, size_t number, const char **name, const void **value, size_t *size) {
    const event_t *e = headers;
    CHECK(e->handed_out == 1);
    if (number >= (size_t)e->header_count) return -1;
    *name = e->headers[number].name, *value = e->headers[number].value, *size = e->headers[number].size;
    return 0;
}
static int64_t f_time(const message_t *m, int *type) { return *type = 1, m->offset * 3; }
static void *f_queue(void *client, const char *topic, int32_t partition) {
    CHECK(client == &state && !strcmp(topic, "t") && partition == 3);
    return queues++, &queues;
}
static void f_forward(void *queue, void *to) { CHECK(queue == &queues && !to); }
static void f_queue_destroy(void *queue) {
    CHECK(queue == &queues);
    queues--;
}
static int f_add(void *conf, const char *name, on_new_t call, void *own) {
    (void)name;
    return call(conf, NULL, own, NULL, 0);
}

static const header_t *last(const event_t *e, const char *name) {
    const header_t *found = NULL;
    for (int k = 0; k < e->header_count; k++)
        if (!strcmp(e->headers[k].name, name)) found = &e->headers[k];
    return found;
}

typedef struct {
    uint8_t *memories[400];
    int64_t sizes[400];
    int count;
} memories_t;

static int64_t untouched; /* what no one has written to */

static void cell(const rows_t *r, const memories_t *mem, int64_t column, int64_t row, const void *b, size_t size) {
    int64_t at = column * r->rows + row, of = r->of[at];
    if (!b) {
        CHECK(of == untouched && r->at[at] == untouched && r->size[at] == untouched);
        return;
    }
    CHECK(r->size[at] == (int64_t)size);
    if (size) {
        CHECK(of >= 0 && of < mem->count && r->at[at] >= 0 && r->at[at] + r->size[at] <= mem->sizes[of]);
        CHECK(!memcmp(mem->memories[of] + r->at[at], b, size));
    }
}

static void compare(const event_t *e, const rows_t *r, const memories_t *mem, const char *const *names) {
    int64_t row = e->message.offset + r->shift, column = 0;
    int empty = r->value && e->message.payload && !e->message.len;
    if (r->value) cell(r, mem, column++, row, e->message.payload, e->message.len);
    if (r->key) cell(r, mem, column++, row, e->message.key, e->message.key_len);
    for (int64_t k = 0; k < r->headers + r->claims; k++) {
        const header_t *h = k < r->headers || empty ? last(e, names[k]) : NULL;
        cell(r, mem, column++, row, h ? h->value : NULL, h ? h->size : 0);
    }
    if (r->times) CHECK(r->times[row] == e->message.offset * 3);
}

static int64_t *numbers(size_t count) {
    int64_t *made = malloc((count ? count : 1) * sizeof *made);
    memset(made, SENTINEL, count * sizeof *made);
    return made;
}

typedef struct {
    uint8_t *at;
    int64_t room, number;
} memory_t;

static memory_t room(memories_t *mem, int64_t size) {
    memory_t made = {mem->memories[mem->count] = malloc(size ? size : 1), mem->sizes[mem->count] = size, mem->count};
    mem->count++;
    return made;
}

static void turn(void) {
    static const char *const all[NAMES] = {"a", "b", "\xff\xfe", "label"};
    memories_t mem = {.count = 0};
    source_t from = {NULL, NULL, NULL};
    rows_t r = {.rows = 1 + rnd(ROWS), .headers = rnd(NAMES + 1), .value = rnd(2), .key = rnd(2)};
    r.claims = r.value ? rnd(NAMES + 1 - r.headers) : 0;
    int64_t start = rnd(10), columns = r.value + r.key + r.headers + r.claims;
    memset(&untouched, SENTINEL, sizeof untouched);
    run_t run = {.want = start, .stop = start + r.rows};
    r.shift = -start, r.names = all;
    r.of = numbers(columns * r.rows), r.at = numbers(columns * r.rows), r.size = numbers(columns * r.rows);
    r.times = rnd(2) ? numbers(r.rows) : NULL;
    r.taken = calloc(r.rows, 1);
    make_events();
    from.queue = dali_feed_kafka_open(&state, "t", 3);
    for (int empty = 0; run.want < run.stop && empty < 3;) {
        int64_t before = run.want;
        run.bytes = 0;
        int why = dali_feed_kafka_take(&from, &run, &r, (int)rnd(2));
        CHECK(run.want >= before && run.want <= run.stop);
        if (why == EMPTY) empty += next_event == event_count;
        if (why == EVENT) {
            CHECK(from.event && !from.message);
            dali_feed_kafka_skip(&from);
        }
        if (why == ROOM) {
            CHECK(run.need > 0 && mem.count < 400);
            CHECK(r.room - r.filled < run.need);
            memory_t now = room(&mem, run.need + (rnd(2) ? rnd(200) : 0));
            r.memory = now.at, r.room = now.room, r.number = now.number, r.filled = 0;
        }
    }
    dali_feed_kafka_close(&from);
    CHECK(!alive && !queues && !from.event && !from.message && !from.queue);
    for (int64_t row = 0; row < r.rows; row++) {
        const event_t *of_row = NULL;
        for (int n = event_count; n--;) /* the first of an offset is taken */
            if (events[n].is_message && events[n].message.offset + r.shift == row) of_row = &events[n];
        if (r.taken[row]) {
            CHECK(of_row);
            compare(of_row, &r, &mem, all);
        } else {
            for (int64_t k = 0; k < columns; k++) CHECK(r.of[k * r.rows + row] == untouched);
            if (r.times) CHECK(r.times[row] == untouched);
        }
    }
    for (int n = 0; n < event_count; n++) release(&events[n]);
    for (int n = 0; n < mem.count; n++) free(mem.memories[n]);
    free(r.of), free(r.at), free(r.size), free(r.times), free(r.taken);
}

int main(int argc, char **argv) {
    void *const table[] = {(void *)f_add,   (void *)f_queue,   (void *)f_forward, (void *)f_queue_destroy,
                           (void *)f_poll,  (void *)f_type,    (void *)f_message, (void *)f_destroy,
                           (void *)f_headers, (void *)f_header, (void *)f_time};
    CHECK(argc == 2);
    CHECK(!conf_init(&state, NULL, NULL, 0) && !dali_feed_kafka_newest()); /* before it knows librdkafka */
    dali_feed_kafka_functions(table);
    CHECK(!conf_init(&state, NULL, NULL, 0));
    CHECK(dali_feed_kafka_newest() == &state && !dali_feed_kafka_newest()); /* given once */
    for (int n = 0; n < atoi(argv[1]); n++) state = (uint64_t)n, turn();
    return 0;
}
