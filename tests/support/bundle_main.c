/* Runs the bundle "net" on each sample of standard input, and writes the outputs.

   main PLACE [FILL]
     PLACE  "heap": each array comes from malloc.  "start" and "end": each array begins or ends at a
            page without access; weights and inputs are read-only.
     FILL   a byte with which arena and outputs are filled before a run; they stay as they are
            without it.

   LEVEL: the level at which it runs.  WEIGHTS: the constants come from net_weights.bin. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "net.h"

enum { MOST = 64, HEAP_ALIGN = sizeof(void *), NO_MEMORY = 90, NO_WEIGHTS, NO_ACCESS };

#ifdef WEIGHTS
#define WEIGHTS_ARGUMENT weights.data,
#else
#define WEIGHTS_ARGUMENT
#endif
#ifdef LEVEL
#define RUN net_run_at
#define LEVEL_ARGUMENT LEVEL,
#else
#define RUN net_run
#define LEVEL_ARGUMENT
#endif

static const char *place;

typedef struct memory {
    unsigned char *data;
    unsigned char *pages;
    size_t nbytes;
    size_t room;
} memory;

static memory make(int64_t nbytes, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memory m;
    void *heap = NULL;
    m.nbytes = (size_t)nbytes;
    m.room = (m.nbytes ? m.nbytes + page - 1 : page) / page * page;
    m.pages = NULL;
    if (!strcmp(place, "heap")) {
        if (posix_memalign(&heap, align, m.nbytes ? m.nbytes : 1))
            exit(NO_MEMORY);
        m.data = (unsigned char *)heap;
        return m;
    }
    m.pages = (unsigned char *)mmap(NULL, m.room + 2 * page, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.pages == (unsigned char *)MAP_FAILED)
        exit(NO_MEMORY);
    m.pages += page;
    if (mprotect(m.pages, m.room, PROT_READ | PROT_WRITE))
        exit(NO_MEMORY);
    m.data = m.pages + (strcmp(place, "end") ? 0 : m.room - m.nbytes);
    return m;
}

static void set_access(memory m, int access)
{
    if (m.pages && mprotect(m.pages, m.room, access))
        exit(NO_ACCESS);
}

static size_t filled(memory m)
{
    size_t count;
    set_access(m, PROT_READ | PROT_WRITE);
    count = fread(m.data, 1, m.nbytes, stdin);
    set_access(m, PROT_READ);
    return count == m.nbytes;
}

#ifdef WEIGHTS
static memory weights_of(const char *file)
{
    const memory m = make(NET_WEIGHTS_NBYTES, NET_ARENA_ALIGN);
    FILE *stream = fopen(file, "rb");
    if (!stream || fread(m.data, 1, m.nbytes, stream) != m.nbytes)
        exit(NO_WEIGHTS);
    fclose(stream);
    set_access(m, PROT_READ);
    return m;
}
#endif

int main(int argc, char **argv)
{
    memory x[MOST], y[MOST], arena;
    const void *inputs[MOST];
    void *outputs[MOST];
    int i, result;
#ifdef WEIGHTS
    memory weights;
#endif
    place = argc > 1 ? argv[1] : "heap";
#ifdef WEIGHTS
    weights = weights_of("net_weights.bin");
#endif
    for (i = 0; i < NET_INPUT_COUNT; i++) {
        x[i] = make(net_facts.inputs[i].nbytes, HEAP_ALIGN);
        inputs[i] = x[i].data;
    }
    for (;;) {
        for (i = 0; i < NET_INPUT_COUNT; i++)
            if (!filled(x[i]))
                return 0;
        arena = make(NET_ARENA_NBYTES, NET_ARENA_ALIGN);
        for (i = 0; i < NET_OUTPUT_COUNT; i++) {
            y[i] = make(net_facts.outputs[i].nbytes, HEAP_ALIGN);
            outputs[i] = y[i].data;
        }
        if (argc > 2) {
            memset(arena.data, atoi(argv[2]), arena.nbytes);
            for (i = 0; i < NET_OUTPUT_COUNT; i++)
                memset(y[i].data, atoi(argv[2]), y[i].nbytes);
        }
        result = RUN(LEVEL_ARGUMENT arena.data, WEIGHTS_ARGUMENT inputs, outputs);
        if (result != NET_OK)
            return result;
        for (i = 0; i < NET_OUTPUT_COUNT; i++)
            fwrite(y[i].data, 1, y[i].nbytes, stdout);
        fflush(stdout);
    }
}
