/* Threads for the parallel loops of TVM's kernels, in place of the pool of TVM's runtime.
 *
 * A kernel calls `collage_parallel_launch` for each parallel loop. The loop is cut into tasks. Each thread begins with a
 * range of its own, and then takes tasks from the ends of the others' ranges. So the caller never waits for a thread that
 * has not begun: it does the work itself. It waits only for tasks that another thread is in the middle of.
 *
 * All callers of a process share the helpers. A caller takes those that are idle, and computes with fewer if others have
 * them. A helper without work waits awake for a short time, since the next loop of a kernel follows within microseconds.
 * Then it sleeps. Nothing yields its processor while it waits: a scheduler would give it to a neighbour for a whole tick.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* TVM's declarations, from tvm/runtime/c_backend_api.h. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} ParallelGroup;
typedef int (*Closure)(int task, ParallelGroup *group, void *data);

enum { MAX_THREADS = 256, TASKS_PER_THREAD = 8, NO_TASK = -1 };

/* Tasks of one thread that nothing has taken yet: the first in the lower half, the end in the upper one. */
typedef struct {
  _Alignas(64) _Atomic uint64_t bounds;
} Range;

/* One parallel loop, on the stack of its caller. Helpers do not read it after they have left `busy`. */
typedef struct {
  Closure closure;
  void *data;
  ParallelGroup group;
  int threads;
  _Atomic int failed;       /* a task whose closure returned an error */
  _Atomic uint32_t busy;    /* helpers that may still work, and CALLER_SLEEPS */
  Range ranges[MAX_THREADS];
} Loop;

#define CALLER_SLEEPS (UINT32_C(1) << 31)

/* Phases of a helper. CLAIMED belongs to a caller that prepares the loop, READY to a loop that the helper has not begun.
 * The other bits of its state count the loops, so that a caller never takes another's loop for its own. */
enum { IDLE, ASLEEP, CLAIMED, READY, RUNNING, PHASES = 8 };

typedef struct {
  _Alignas(64) _Atomic uint32_t state;
  Loop *loop;
  int place; /* which range of the loop is its own */
  pthread_t thread;
} Helper;

static Helper helpers[MAX_THREADS];
static _Atomic int started;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks = PTHREAD_ONCE_INIT;
static _Atomic uint32_t rests;
/* Longer than the gaps between most loops of a kernel. Six processes of four convolutions, in turns: 157 runs a second with
 * 50 microseconds, 122 with 1000, where the waiting thread takes resources of a core from the one that computes. */
static const int64_t awake_ns = 50000;
static _Atomic int avoided = -1;       /* the processor that helpers are kept off */
static _Atomic int64_t avoided_ns = 0; /* since when */
static _Thread_local int wanted = 1;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static uint32_t phase(uint32_t state) { return state % PHASES; }

static int change(_Atomic uint32_t *state, uint32_t from, uint32_t to) {
  return atomic_compare_exchange_strong(state, &from, to);
}

/* Return a task, from the front of one's own range or from the end of another's. */
static int take(Range *range, int is_own) {
  uint64_t bounds = atomic_load(&range->bounds);
  for (;;) {
    uint32_t first = (uint32_t)bounds, end = (uint32_t)(bounds >> 32);
    if (first >= end) return NO_TASK;
    uint64_t left = is_own ? bounds + 1 : bounds - (UINT64_C(1) << 32);
    if (atomic_compare_exchange_weak(&range->bounds, &bounds, left)) return (int)(is_own ? first : end - 1);
  }
}

static void work(Loop *loop, int place) {
  for (int i = 0; i < loop->threads; i++) {
    Range *range = &loop->ranges[(place + i) % loop->threads];
    for (int task; (task = take(range, i == 0)) != NO_TASK;)
      if (loop->closure(task, &loop->group, loop->data) != 0) atomic_store(&loop->failed, task);
  }
}

static void *help(void *argument) {
  Helper *helper = argument;
  for (;;) {
    uint32_t state = atomic_load(&helper->state), seen = atomic_load(&rests);
    if (phase(state) == READY && change(&helper->state, state, state - READY + RUNNING)) {
      Loop *loop = helper->loop;
      work(loop, helper->place);
      /* Idle first, so that the caller's next loop finds this helper. */
      atomic_store(&helper->state, state - READY + IDLE);
      if (atomic_fetch_sub(&loop->busy, 1) == (CALLER_SLEEPS | 1)) wake(&loop->busy);
    }
    int64_t until_ns = now_ns() + awake_ns;
    int is_awake = 1;
    for (int turn = 1; phase(state = atomic_load(&helper->state)) != READY && is_awake; turn++) {
      relax();
      if (turn % 16 == 0) is_awake = now_ns() < until_ns && atomic_load(&rests) == seen;
    }
    if (phase(state) == IDLE && change(&helper->state, state, state - IDLE + ASLEEP)) state += ASLEEP - IDLE;
    while (phase(state) == ASLEEP) {
      sleep_while(&helper->state, state);
      state = atomic_load(&helper->state);
    }
  }
  return NULL;
}

/* A fork has no helpers: it starts its own. */
static void forget_helpers(void) {
  for (int i = 0; i < MAX_THREADS; i++) atomic_store(&helpers[i].state, IDLE);
  atomic_store(&started, 0);
  pthread_mutex_init(&starting, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_helpers); }

/* Start helpers until there are `count`, or as many as the system allows. They handle no signals. */
static void start_helpers(int count) {
  pthread_once(&forks, watch_forks);
  pthread_mutex_lock(&starting);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = atomic_load(&started); i < count; i++) {
    if (pthread_create(&helpers[i].thread, NULL, help, &helpers[i]) != 0) break;
    pthread_setname_np(helpers[i].thread, "collage-tvm");
    pthread_detach(helpers[i].thread);
    atomic_store(&started, i + 1);
  }
  atomic_store(&avoided, -1);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_mutex_unlock(&starting);
}

/* Keep helpers off the caller's processor, if there are enough others. Linux often wakes a thread on the processor of the
 * thread that wakes it, which is busy here, and moves it away only milliseconds later. */
static void keep_helpers_off(int processor) {
  int64_t now = now_ns();
  int count = atomic_load(&started);
  /* Each move takes microseconds, and several callers share helpers. */
  if (now - atomic_load(&avoided_ns) < count * INT64_C(1000000)) return;
  atomic_store(&avoided_ns, now);
  atomic_store(&avoided, processor);
  cpu_set_t others;
  if (sched_getaffinity(0, sizeof others, &others) != 0) return;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) < count) return;
  for (int i = 0; i < count; i++) pthread_setaffinity_np(helpers[i].thread, sizeof others, &others);
}

/* Have idle helpers join the loop, at most one for each range but the caller's. Return their tickets by place, 0 if none. */
static int join(Loop *loop, uint32_t *tickets, int *members) {
  int places = 1, available = atomic_load(&started), processor = sched_getcpu();
  if (processor >= 0 && processor != atomic_load(&avoided)) keep_helpers_off(processor);
  for (int i = 0; i < available && places < loop->threads; i++) {
    uint32_t state = atomic_load(&helpers[i].state);
    if (phase(state) > ASLEEP) continue;
    uint32_t ticket = state - phase(state) + PHASES;
    if (!change(&helpers[i].state, state, ticket + CLAIMED)) continue;
    helpers[i].loop = loop;
    helpers[i].place = places;
    atomic_fetch_add(&loop->busy, 1);
    atomic_store(&helpers[i].state, ticket + READY);
    if (phase(state) == ASLEEP) wake(&helpers[i].state);
    tickets[places] = ticket;
    members[places++] = i;
  }
  return places;
}

/* Compute with this many threads in later loops of the calling thread, itself included. */
void collage_use_threads(int threads) {
  wanted = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
  if (atomic_load(&started) < wanted - 1) start_helpers(wanted - 1);
}

/* Have helpers without work sleep now, since other threads need their processors. */
void collage_rest(void) { atomic_fetch_add(&rests, 1); }

/* Run a parallel loop. The calling convention is that of TVMBackendParallelLaunch. */
int collage_parallel_launch(Closure closure, void *data, int num_task) {
  if (wanted == 1 && num_task == 0) {
    ParallelGroup alone = {NULL, 1};
    return closure(0, &alone, data);
  }
  Loop loop;
  uint32_t tickets[MAX_THREADS];
  int members[MAX_THREADS];
  int tasks = num_task > 0 ? num_task : wanted * TASKS_PER_THREAD;
  loop.closure = closure;
  loop.data = data;
  loop.group = (ParallelGroup){NULL, tasks};
  loop.threads = wanted;
  atomic_init(&loop.failed, NO_TASK);
  atomic_init(&loop.busy, 0);
  for (int i = 0; i < wanted; i++) {
    uint64_t first = (int64_t)tasks * i / wanted, end = (int64_t)tasks * (i + 1) / wanted;
    atomic_init(&loop.ranges[i].bounds, end << 32 | first);
  }
  if (atomic_load(&started) < wanted - 1) start_helpers(wanted - 1);
  int places = join(&loop, tickets, members);
  work(&loop, 0);
  for (int i = 1; i < places; i++)
    if (change(&helpers[members[i]].state, tickets[i] + READY, tickets[i] + IDLE)) atomic_fetch_sub(&loop.busy, 1);
  int64_t until_ns = now_ns() + awake_ns;
  for (int turn = 1; atomic_load(&loop.busy) && (turn % 16 || now_ns() < until_ns); turn++) relax();
  for (uint32_t busy; (busy = atomic_load(&loop.busy)) & ~CALLER_SLEEPS;)
    if (busy & CALLER_SLEEPS || change(&loop.busy, busy, busy | CALLER_SLEEPS))
      sleep_while(&loop.busy, busy | CALLER_SLEEPS);
  /* The error belongs to the thread that met it, so the caller meets it too. */
  int failed = atomic_load(&loop.failed);
  return failed == NO_TASK ? 0 : closure(failed, &loop.group, data);
}
