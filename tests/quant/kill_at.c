/* Preloaded into a program (LD_PRELOAD), ends it by SIGKILL inside the N-th call of one kind: KILL_AT=KIND:N.
 *   journal-write, shard-write   half of the bytes of a large write to such a file are written
 *   rename-before, rename-after  a rename is about to happen, or has just happened
 *   cholesky                     KILL_AFTER_US microseconds into LAPACK's factorisation, or at its end
 * What was hit is appended to the file KILL_LOG; the calls of a run that ends by itself, one "KIND N" a line,
 * to KILL_COUNTS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kLargeWrite = 4096 };
enum kind { kJournalWrite, kShardWrite, kRenameBefore, kRenameAfter, kCholesky, kKinds };
static const char* const kNames[kKinds] = {"journal-write", "shard-write", "rename-before", "rename-after",
                                           "cholesky"};
static atomic_long calls[kKinds];

static void append(const char* variable, const char* format, ...) {
  const char* path = getenv(variable);
  if (path == NULL) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  dprintf(file, "%.*s", length, text);
  close(file);
}

/* Counts a call; whether it is the one. */
static int hit(enum kind kind) {
  const long number = atomic_fetch_add(&calls[kind], 1) + 1;
  const char* at = getenv("KILL_AT");
  const size_t length = strlen(kNames[kind]);
  return at != NULL && strncmp(at, kNames[kind], length) == 0 && at[length] == ':' &&
         strtol(at + length + 1, NULL, 10) == number;
}

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

ssize_t write(int file, const void* data, size_t size) {
  static ssize_t (*next)(int, const void*, size_t);
  if (next == NULL) next = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = size < kLargeWrite ? -1 : readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    const int shard = strstr(path, "/shard-") != NULL, entry = strstr(path, ".entry") != NULL;
    if ((shard && hit(kShardWrite)) || (entry && hit(kJournalWrite))) {
      append("KILL_LOG", "half of a write of %zu bytes to %s\n", size, strrchr(path, '/') + 1);
      next(file, data, size / 2);
      die();
    }
  }
  return next(file, data, size);
}

int rename(const char* from, const char* to) {
  static int (*next)(const char*, const char*);
  if (next == NULL) next = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
  if (hit(kRenameBefore)) {
    append("KILL_LOG", "before %s gets its name\n", to);
    die();
  }
  const int result = next(from, to);
  if (hit(kRenameAfter)) {
    append("KILL_LOG", "after %s got its name\n", to);
    die();
  }
  return result;
}

static void* die_later(void* unused) {
  const char* after = getenv("KILL_AFTER_US");
  usleep(after == NULL ? 0 : (useconds_t)strtoul(after, NULL, 10));
  append("KILL_LOG", "within it\n");
  die();
  return unused;
}

static void factorise(const char* name, const char* part, const int* n, void* a, const int* stride,
                      int* info) {
  typedef void (*Potrf)(const char*, const int*, void*, const int*, int*);
  const Potrf next = (Potrf)dlsym(RTLD_NEXT, name);
  const int last = hit(kCholesky);
  if (last) {
    append("KILL_LOG", "Cholesky factorisation of order %d: ", *n);
    pthread_t thread;
    pthread_create(&thread, NULL, die_later, NULL);
  }
  next(part, n, a, stride, info);
  if (last) {
    append("KILL_LOG", "at its end\n");
    die();
  }
}

void dpotrf_(const char* part, const int* n, void* a, const int* stride, int* info) {
  factorise("dpotrf_", part, n, a, stride, info);
}

void spotrf_(const char* part, const int* n, void* a, const int* stride, int* info) {
  factorise("spotrf_", part, n, a, stride, info);
}

__attribute__((destructor)) static void report(void) {
  for (int kind = 0; kind < kKinds; ++kind) append("KILL_COUNTS", "%s %ld\n", kNames[kind], calls[kind]);
}
