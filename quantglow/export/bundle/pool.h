/* Threads that run NAME together, on Linux: each run gives the integers of NAME_run.

   NAME_pool.c needs gcc or clang, and of the C library pthread_create, pthread_join, mutexes and
   condition variables: compile and link it with -pthread. */
#ifndef UPPER_POOL_H
#define UPPER_POOL_H

#include <pthread.h>
#include "NAME.h"

#ifdef __cplusplus
extern "C" {
#endif

#define UPPER_POOL_MOST 64 /* maximum number of threads, with that of the caller */

/* The threads between two calls, in memory of yours that does not move; its fields are private. */
typedef struct {
    pthread_t others[UPPER_POOL_MOST - 1];
    pthread_mutex_t lock;
    pthread_cond_t next;
    unsigned round;
    int parts, arrived, numbered, stops, result;LEVEL_FIELD
    void *arena;WEIGHTS_FIELD
    const void *const *inputs;
    void *const *outputs;
} NAME_pool;

/* Starts threads - 1 threads; 0, or the error of pthread_create, EINVAL for a number that is not
   from 1 to UPPER_POOL_MOST: then nothing is left to be stopped. */
int NAME_pool_start(NAME_pool *pool, int threads);

/* NAME_run by the threads of the pool, of which the caller is one. A pool has one run at a time;
   several pools, each with an arena and outputs of its own, may run at once. */
int NAME_pool_run(NAME_pool *pool, void *arena, WEIGHTS_PARAMETERconst void *const *inputs,
                  void *const *outputs);

/* Ends the threads. After a fork a child has none of them and starts a pool of its own. */
void NAME_pool_stop(NAME_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
