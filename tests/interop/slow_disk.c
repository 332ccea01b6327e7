/* A slow disk for programs that are started with LD_PRELOAD: what makes writes safe returns later.
 *
 * DISK_DELAY_MS  each call takes so much longer
 * DISK_LONG_MS   every DISK_LONG_EVERY th call takes that much longer instead
 * DISK_HELD      as long as a file of this name exists, no call returns */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static atomic_ulong calls;

static void wait_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0) {
    }
}

static long number(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

static void delay(void) {
    long every = number("DISK_LONG_EVERY");
    unsigned long call = atomic_fetch_add(&calls, 1) + 1;
    wait_ms(every && call % every == 0 ? number("DISK_LONG_MS") : number("DISK_DELAY_MS"));
    const char *held = getenv("DISK_HELD");
    while (held && access(held, F_OK) == 0)
        wait_ms(1);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fdatasync(int file) {
    delay();
    return REAL(fdatasync)(file);
}

int fsync(int file) {
    delay();
    return REAL(fsync)(file);
}

int sync_file_range(int file, off_t from, off_t bytes, unsigned int flags) {
    delay();
    return REAL(sync_file_range)(file, from, bytes, flags);
}

int msync(void *from, size_t bytes, int flags) {
    if (flags & MS_SYNC)
        delay();
    return REAL(msync)(from, bytes, flags);
}
