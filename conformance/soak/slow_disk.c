/* Preloaded into the server: each fdatasync and fsync takes longer by the milliseconds that the file SLOW_DISK holds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_as_told(void) {
    const char *path = getenv("SLOW_DISK");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned milliseconds = 0;
    if (file) {
        if (fscanf(file, "%u", &milliseconds) != 1) milliseconds = 0;
        fclose(file);
    }
    usleep(milliseconds * 1000);
}

int fdatasync(int file) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_as_told();
    return next(file);
}

int fsync(int file) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_as_told();
    return next(file);
}
