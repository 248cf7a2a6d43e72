/* Guards: areas of memory that end a program when it reads or writes there. */
#ifndef GUARDS_H
#define GUARDS_H

#include <stdint.h>

enum { GUARD_NBYTES = 64 };

/* Deny all access to GUARD_NBYTES from an address that they divide. */
void guard(const void *address);

#endif
