/* The records of one Kafka partition, from librdkafka's memory into ours: one copy each, and no Python per record.

   The law: librdkafka is called by its public functions alone, in the library that confluent_kafka brings and whose
   client it made. Whatever is no record is left at the head for Python to look at. Records come as events: any other way
   of asking runs callbacks of confluent_kafka, which it does not expect here.

   The client is confluent_kafka's. Its handle comes to us as librdkafka hands it to a plugin: `conf_init` is called
   where `plugin.library.paths` names this library, and `on_new` when the client is made, in the thread that makes it.
   Records come from the partition's own queue, and all else (logs, statistics, errors of the connection) from the
   client's, where confluent_kafka serves it.

   Declared here is what is used of rdkafka.h, whose layout librdkafka keeps for all versions 1 and 2. */
#include <string.h>
#include <time.h>

#include "native.h"

typedef struct {
    int32_t error; /* none: errors come as events */
    void *topic;
    int32_t partition;
    const uint8_t *payload;
    size_t len;
    const uint8_t *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} message_t;

typedef int (*on_new_t)(void *client, const void *conf, void *own, char *said, size_t said_size);

/* In the order in which kafka.py gives them. */
static struct {
    int (*add_on_new)(void *conf, const char *name, on_new_t on_new, void *own);
    void *(*queue_of)(void *client, const char *topic, int32_t partition);
    void (*forward)(void *queue, void *to);
    void (*queue_destroy)(void *queue);
    void *(*poll)(void *queue, int milliseconds);
    int (*type)(const void *event);
    const message_t *(*message)(void *event);
    void (*destroy)(void *event);
    int32_t (*headers)(const message_t *message, void **headers);
    int32_t (*header)(const void *headers, size_t number, const char **name, const void **value, size_t *size);
    int64_t (*timestamp)(const message_t *message, int *type);
} rd;

static _Thread_local void *newest; /* the client that this thread made last */

EXPORTED void dali_feed_kafka_functions(void *const *functions)
{
    memcpy(&rd, functions, sizeof rd);
}

static int on_new(void *client, const void *conf, void *own, char *said, size_t said_size)
{
    (void)conf, (void)own, (void)said, (void)said_size;
    newest = client;
    return 0;
}

EXPORTED int conf_init(void *conf, void **opaque, char *said, size_t said_size)
{
    (void)opaque, (void)said, (void)said_size;
    return rd.add_on_new ? rd.add_on_new(conf, "dali_feed", on_new, NULL) : 0;
}

EXPORTED void *dali_feed_kafka_newest(void)
{
    void *found = newest;
    newest = NULL;
    return found;
}

enum { FETCHED = 2 };    /* the kind of event that is a record */
enum { LOOK_EACH = 16 }; /* records, after which there is a look at the clock */
enum { MUCH = 128 << 10 }; /* bytes of a record, after which there is one too */
enum { NONE = -1 };      /* in the place of a memory: the record has no such part, or a null */

/* A partition's queue, and at its head the event that nobody has had yet, with its record; NULL: none, or no record. */
typedef struct {
    void *queue, *event;
    const message_t *message;
} source_t;

/* Rows that are filled, in the arrays of `Cells` in rows.py. Of column c and row r the bytes are size[c * rows + r] from
   byte at[...] on of the memory number of[...]; columns stand in the order value, key, headers, as far as they are asked
   for, and behind them headers that are looked at where a value is of no bytes. */
typedef struct {
    uint8_t *memory; /* the one that is being filled, its bytes, how many are in use, its number */
    int64_t room, filled, number;
    int64_t rows, shift; /* a record's row is its offset + shift */
    int64_t *of, *at, *size;
    int64_t value, key, headers, claims; /* whether they are asked for, and how many headers; those of empty values */
    const char *const *names;            /* of all these headers; the last of a name counts */
    int64_t *times;                      /* NULL where not asked for */
    uint8_t *taken;                      /* 1 for each row that was filled here */
} rows_t;

typedef struct {
    int64_t want, stop; /* the offsets want .. stop-1 are still to come */
    int64_t bytes;      /* of keys and values of all that were taken in this turn */
    int64_t need;       /* where it ended for want of room: the bytes of that record */
} run_t;

/* Why `dali_feed_kafka_take` came back. */
enum { DONE, EMPTY, LOOK, ROOM, EVENT };

typedef struct {
    const uint8_t *bytes; /* NULL: there is no such part */
    int64_t size;
} found_t;

enum { MOST_HEADERS = 19 };

/* The last header of each name. */
static void look_up(const message_t *m, const char *const *names, int64_t count, found_t *found)
{
    void *headers = NULL;
    const char *name;
    const void *value;
    size_t size;
    if (rd.headers(m, &headers))
        return; /* it has none */
    for (size_t n = 0; !rd.header(headers, n, &name, &value, &size); n++)
        for (int64_t k = 0; k < count; k++)
            if (!strcmp(name, names[k]))
                found[k] = (found_t){value, value ? (int64_t)size : 0};
}

enum { LINE = 64, AHEAD = 1024, LARGE = 4 << 10 }; /* bytes: of a cache's line, asked for so early, in such copies */

/* As memcpy, into memory that no cache has: its lines are asked for some time before they are written. */
static void copy(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size >= LARGE) {
        size_t head = (size_t)(-(uintptr_t)to % LINE);
        memcpy(to, from, head);
        for (to += head, from += head, size -= head; size >= LINE; to += LINE, from += LINE, size -= LINE) {
            __builtin_prefetch(to + AHEAD, 1);
            memcpy(to, from, LINE);
        }
    }
    memcpy(to, from, size);
}

static void put(rows_t *rows, int64_t column, int64_t row, found_t what)
{
    int64_t cell = column * rows->rows + row;
    if (!what.bytes)
        return; /* it says so from the beginning */
    rows->of[cell] = rows->number;
    rows->at[cell] = rows->filled;
    rows->size[cell] = what.size;
    if (what.size)
        copy(rows->memory + rows->filled, what.bytes, (size_t)what.size);
    rows->filled += what.size;
}

/* One record into its row; 0 where it needs more room. */
static int take_one(const message_t *m, run_t *run, rows_t *rows)
{
    found_t parts[2 + MOST_HEADERS] = {{NULL, 0}};
    int64_t row = m->offset + rows->shift, columns = 0, names = rows->headers;
    if (rows->value) {
        parts[columns++] = (found_t){m->payload, (int64_t)m->len};
        if (m->payload && !m->len)
            names += rows->claims;
    }
    if (rows->key)
        parts[columns++] = (found_t){m->key, (int64_t)m->key_len};
    if (names)
        look_up(m, rows->names, names, parts + columns);
    columns += names;
    run->need = 0;
    for (int64_t k = 0; k < columns; k++)
        run->need += parts[k].size;
    if (run->need > rows->room - rows->filled)
        return 0;
    for (int64_t k = 0; k < columns; k++)
        put(rows, k, row, parts[k]);
    if (rows->times) {
        int type;
        rows->times[row] = rd.timestamp(m, &type);
    }
    rows->taken[row] = 1;
    return 1;
}

EXPORTED void dali_feed_kafka_skip(source_t *from)
{
    rd.destroy(from->event);
    from->event = NULL, from->message = NULL;
}

/* Whether there is something at the head, waiting so long for it. */
static int fetch(source_t *from, int milliseconds)
{
    if (from->event)
        return 1;
    if (!(from->event = rd.poll(from->queue, milliseconds)))
        return 0;
    if (rd.type(from->event) == FETCHED)
        from->message = rd.message(from->event);
    return 1;
}

static int64_t now(void) /* in milliseconds */
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* Fill rows with the records of a run, for `milliseconds` in all and some records longer: neither records that trickle
   nor records without end keep Python from looking around. It is no sooner, as Python is slow at first whenever copies
   have filled the caches. DONE: `want` has come to `stop`; a record beyond it may stand at the head. EMPTY: that time is
   over, with nothing there. LOOK: it is over, and more is there. ROOM: another memory is needed, of `need` bytes or
   more. EVENT: what stands at the head is no record. */
EXPORTED int dali_feed_kafka_take(source_t *from, run_t *run, rows_t *rows, int milliseconds)
{
    int64_t until = now() + milliseconds, left;
    if (!from->queue)
        return EMPTY; /* it was closed, as by a signal's handler */
    for (int seen = 0; run->want < run->stop; seen++) {
        if (seen >= LOOK_EACH || (seen && run->need >= MUCH)) {
            if (now() >= until)
                return LOOK;
            seen = 0;
        }
        if (!fetch(from, 0) && ((left = until - now()) <= 0 || !fetch(from, (int)left)))
            return EMPTY;
        const message_t *m = from->message;
        if (!m)
            return EVENT;
        if (m->offset >= run->stop) {
            run->want = run->stop;
            return DONE;
        }
        if (m->offset >= run->want) { /* else of an assignment before this one */
            if (!take_one(m, run, rows))
                return ROOM;
            run->bytes += (int64_t)(m->len + m->key_len);
            run->want = m->offset + 1;
        }
        dali_feed_kafka_skip(from);
    }
    return DONE;
}

/* A partition's queue, apart from the client's: its records come here alone. NULL where there is none. */
EXPORTED void *dali_feed_kafka_open(void *client, const char *topic, int32_t partition)
{
    void *queue = rd.queue_of(client, topic, partition);
    if (queue)
        rd.forward(queue, NULL);
    return queue;
}

/* Give a queue back, emptied: librdkafka keeps what waits in it for as long as the client lives. */
EXPORTED void dali_feed_kafka_close(source_t *from)
{
    while (fetch(from, 0))
        dali_feed_kafka_skip(from);
    rd.queue_destroy(from->queue);
    from->queue = NULL;
}
