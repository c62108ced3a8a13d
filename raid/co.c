/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Coroutines and what they wait on.
 *
 * A coroutine is resumed by the loop only and always returns to the loop, so there are exactly two
 *kinds of switches and the depth is one. Waking puts it on the loop's run queue; it never runs
 *inside of co_wake, so the waker's invariants need not hold at that point.
 *
 *	            co_wake, co_spawn         loop
 *	  WAITING ---------------------> RUNNABLE ------> RUNNING
 *	     ^                                               |
 *	     +----------------- co_wait ---------------------+
 *
 * The switch saves the callee-saved registers on the stack and exchanges the stack pointers: a
 *function call as far as the compiler is concerned. The floating-point control words are not saved,
 *nobody here changes them. ucontext would do it too, but swapcontext makes a system call each time
 *to save the signal mask; it remains for other architectures, and CO_UCONTEXT forces it.
 *
 * Stacks are mapped with a guard page below, so that an overflow is a fault and not somebody's else
 *memory. Used stacks are kept for the next coroutine, STACKS_KEPT_MAX of them; their pages stay
 *populated, which makes a spawn cheap.
 *
 * Everything that waits is a struct waiter on its own stack in a list: waiting needs no memory and
 *cannot fail.
 */
#include "co.h"

#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(CO_UCONTEXT)
#define CO_UCONTEXT 1
#endif
#ifdef CO_UCONTEXT
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#define STACK_BYTES (4 * CO_STACK_BYTES) /* red zones and no sharing of stack slots */
#elif !defined(__OPTIMIZE__)
#define STACK_BYTES (4 * CO_STACK_BYTES) /* no sharing of stack slots */
#else
#define STACK_BYTES CO_STACK_BYTES
#endif

#define STACKS_KEPT_MAX 256

/* Lies at the lowest end of a stack that nobody uses. */
struct stack {
	struct stack *next;
};

enum co_state { CO_RUNNABLE, CO_RUNNING, CO_WAITING, CO_ENDED };

struct context {
#ifdef CO_UCONTEXT
	ucontext_t uc;
#else
	void *sp;
#endif
#ifdef __SANITIZE_ADDRESS__
	void *fake_stack;
	const void *bottom;
	size_t bytes;
#endif
};

struct co {
	struct loop_task task;
	struct loop *loop;
	enum co_state state;
	void (*fn)(void *arg);
	void *arg;
	struct stack *stack;
	struct context context;
};

static struct {
	struct co *current;
	struct context loop_context; /* of whoever resumed it */
	struct stack *kept;
	unsigned kept_count;
	unsigned count;
} sched;

/* ---- switching ---- */

#ifdef CO_UCONTEXT

static void context_jump(struct context *from, struct context *to)
{
	int err = swapcontext(&from->uc, &to->uc);

	assert(err == 0);
	(void)err;
}

static void context_init(struct context *c, void *stack, size_t bytes, void (*entry)(void))
{
	int err = getcontext(&c->uc);

	assert(err == 0);
	(void)err;
	c->uc.uc_stack.ss_sp = stack;
	c->uc.uc_stack.ss_size = bytes;
	c->uc.uc_link = NULL;
	makecontext(&c->uc, entry, 0);
}

#else

/* Saves the caller, with its stack pointer in *save_sp, and goes on where load_sp was saved. */
void co_switch_stacks(void **save_sp, void *load_sp);

#if defined(__x86_64__)
#define SAVED_WORDS 6
/* System V ABI: rbx, rbp, r12-r15 belong to the caller. */
__asm__(".text\n"
	".p2align 4\n"
	".globl co_switch_stacks\n"
	".hidden co_switch_stacks\n"
	".type co_switch_stacks,@function\n"
	"co_switch_stacks:\n"
	"	endbr64\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size co_switch_stacks,.-co_switch_stacks\n");
#elif defined(__aarch64__)
#define SAVED_WORDS 20
/* AAPCS64: x19-x30 and the low halves of v8-v15 belong to the caller. */
__asm__(".text\n"
	".p2align 4\n"
	".globl co_switch_stacks\n"
	".hidden co_switch_stacks\n"
	".type co_switch_stacks,%function\n"
	"co_switch_stacks:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp, #0]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x2, sp\n"
	"	str x2, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp, #0]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size co_switch_stacks,.-co_switch_stacks\n");
#endif

static void context_jump(struct context *from, struct context *to)
{
	co_switch_stacks(&from->sp, to->sp);
}

/* A stack that looks as if entry had been about to be called when it was left. */
static void context_init(struct context *c, void *stack, size_t bytes, void (*entry)(void))
{
	void **top = (void **)((char *)stack + bytes);
	void **sp;

#if defined(__x86_64__)
	/* Upwards: the registers, entry as return address, 0 as the return address of entry. */
	*--top = NULL;
	*--top = (void *)entry;
	sp = top - SAVED_WORDS;
	memset(sp, 0, SAVED_WORDS * sizeof(*sp));
#else
	sp = top - SAVED_WORDS;
	memset(sp, 0, SAVED_WORDS * sizeof(*sp));
	sp[11] = (void *)entry; /* x30 */
#endif
	c->sp = sp;
}

#endif

/* The sanitizer must know on which stack it is; `ends`: from will never be returned to. */
static void context_switch(struct context *from, struct context *to, bool ends)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(ends ? NULL : &from->fake_stack, to->bottom, to->bytes);
#endif
	context_jump(from, to);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

/* ---- stacks ---- */

static struct stack *stack_get(void)
{
	size_t guard_bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct stack *stack = sched.kept;
	char *map;

	if (stack) {
		sched.kept = stack->next;
		sched.kept_count--;
		return stack;
	}
	map = mmap(NULL, guard_bytes + STACK_BYTES, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	if (mprotect(map, guard_bytes, PROT_NONE)) {
		(void)munmap(map,
			     guard_bytes + STACK_BYTES); /* cannot fail on what was just mapped */
		return NULL;
	}
#ifdef __SANITIZE_ADDRESS__
	__lsan_register_root_region(map + guard_bytes, STACK_BYTES);
#endif
	return (struct stack *)(map + guard_bytes);
}

static void stack_put(struct stack *stack)
{
	size_t guard_bytes = (size_t)sysconf(_SC_PAGESIZE);

#ifdef __SANITIZE_ADDRESS__
	/* The last frame never returned: its red zones are still marked. */
	__asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
	if (sched.kept_count < STACKS_KEPT_MAX) {
		stack->next = sched.kept;
		sched.kept = stack;
		sched.kept_count++;
		return;
	}
#ifdef __SANITIZE_ADDRESS__
	__lsan_unregister_root_region(stack, STACK_BYTES);
#endif
	(void)munmap((char *)stack - guard_bytes, guard_bytes + STACK_BYTES); /* ours, whole */
}

/* ---- coroutines ---- */

static void co_entry(void)
{
	struct co *co = sched.current;

#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(NULL, &sched.loop_context.bottom,
					&sched.loop_context.bytes);
#endif
	co->fn(co->arg);
	co->state = CO_ENDED;
	context_switch(&co->context, &sched.loop_context, true);
	__builtin_unreachable();
}

static void co_free(struct co *co)
{
	loop_co_gone(co->loop);
	sched.count--;
	stack_put(co->stack);
	mem_free(co);
}

static void co_resume(struct co *co)
{
	assert(!sched.current && co->state == CO_RUNNABLE);
	co->state = CO_RUNNING;
	sched.current = co;
	context_switch(&sched.loop_context, &co->context, false);
	sched.current = NULL;
	if (co->state == CO_ENDED)
		co_free(co);
}

static void co_task_run(struct loop_task *task)
{
	co_resume(container_of(task, struct co, task));
}

static struct co *co_new(struct loop *loop, void (*fn)(void *arg), void *arg)
{
	struct co *co;

	if (sched.count >= CO_COUNT_MAX)
		return NULL;
	co = mem_zalloc(sizeof(*co));
	if (!co)
		return NULL;
	co->stack = stack_get();
	if (!co->stack) {
		mem_free(co);
		return NULL;
	}
	list_init(&co->task.node);
	co->task.run = co_task_run;
	co->loop = loop;
	co->fn = fn;
	co->arg = arg;
	co->state = CO_RUNNABLE;
	context_init(&co->context, co->stack, STACK_BYTES, co_entry);
#ifdef __SANITIZE_ADDRESS__
	co->context.bottom = co->stack;
	co->context.bytes = STACK_BYTES;
#endif
	sched.count++;
	loop_co_born(loop);
	return co;
}

int co_spawn(struct loop *loop, void (*fn)(void *arg), void *arg)
{
	struct co *co = co_new(loop, fn, arg);

	if (!co)
		return -ENOMEM;
	loop_run_soon(loop, &co->task);
	return 0;
}

int co_start(struct loop *loop, void (*fn)(void *arg), void *arg)
{
	struct co *co;

	assert(!sched.current);
	co = co_new(loop, fn, arg);
	if (!co)
		return -ENOMEM;
	co_resume(co);
	return 0;
}

struct co *co_self(void)
{
	return sched.current;
}

struct loop *co_loop(void)
{
	assert(sched.current);
	return sched.current->loop;
}

void co_wait(void)
{
	struct co *co = sched.current;

	assert(co);
	co->state = CO_WAITING;
	context_switch(&co->context, &sched.loop_context, false);
}

void co_wake(struct co *co)
{
	assert(co->state == CO_WAITING);
	co->state = CO_RUNNABLE;
	loop_run_soon(co->loop, &co->task);
}

void co_yield (void)
{
	struct co *co = sched.current;

	assert(co);
	co->state = CO_RUNNABLE;
	loop_run_soon(co->loop, &co->task);
	context_switch(&co->context, &sched.loop_context, false);
}

/* ---- waiting for something ---- */

struct waiter {
	struct list node;
	struct co *co;
	struct loop_timer timer;
	bool timed_out;
	bool writer; /* of an rwlock */
};

static void waiter_init(struct waiter *w)
{
	*w = (struct waiter){.co = sched.current};
	assert(w->co);
	list_init(&w->node);
}

/* Takes it off its list and lets it run. */
static void waiter_wake(struct waiter *w)
{
	list_del(&w->node);
	loop_timer_cancel(w->co->loop, &w->timer);
	co_wake(w->co);
}

static void waiter_timeout(struct loop_timer *timer)
{
	struct waiter *w = container_of(timer, struct waiter, timer);

	w->timed_out = true;
	waiter_wake(w);
}

void co_sleep_ns(uint64_t ns)
{
	struct waiter w;
	uint64_t now_ns;

	waiter_init(&w);
	now_ns = loop_now_ns(w.co->loop);
	loop_timer_init(&w.timer, waiter_timeout);
	loop_timer_arm(w.co->loop, &w.timer, ns > LOOP_NEVER - now_ns ? LOOP_NEVER : now_ns + ns);
	co_wait();
}

void co_cond_init(struct co_cond *c)
{
	list_init(&c->waiters);
}

void co_cond_wait(struct co_cond *c)
{
	struct waiter w;

	waiter_init(&w);
	list_add_tail(&c->waiters, &w.node);
	co_wait();
}

int co_cond_wait_until(struct co_cond *c, uint64_t until_ns)
{
	struct waiter w;

	waiter_init(&w);
	if (until_ns != LOOP_NEVER) {
		loop_timer_init(&w.timer, waiter_timeout);
		loop_timer_arm(w.co->loop, &w.timer, until_ns);
	}
	list_add_tail(&c->waiters, &w.node);
	co_wait();
	return w.timed_out ? -ETIMEDOUT : 0;
}

void co_cond_wake_one(struct co_cond *c)
{
	if (!list_empty(&c->waiters))
		waiter_wake(list_first(&c->waiters, struct waiter, node));
}

void co_cond_wake_all(struct co_cond *c)
{
	while (!list_empty(&c->waiters))
		waiter_wake(list_first(&c->waiters, struct waiter, node));
}

bool co_cond_has_waiters(const struct co_cond *c)
{
	return !list_empty(&c->waiters);
}

void co_mutex_init(struct co_mutex *m)
{
	m->owner = NULL;
	co_cond_init(&m->waiters);
}

bool co_mutex_trylock(struct co_mutex *m)
{
	assert(sched.current);
	if (m->owner)
		return false;
	m->owner = sched.current;
	return true;
}

void co_mutex_lock(struct co_mutex *m)
{
	assert(m->owner != sched.current);
	if (co_mutex_trylock(m))
		return;
	co_cond_wait(&m->waiters);
	assert(m->owner == sched.current); /* handed over by unlock: nobody can slip in between */
}

void co_mutex_unlock(struct co_mutex *m)
{
	assert(sched.current && m->owner == sched.current);
	m->owner = NULL;
	if (co_cond_has_waiters(&m->waiters)) {
		m->owner = list_first(&m->waiters.waiters, struct waiter, node)->co;
		co_cond_wake_one(&m->waiters);
	}
}

void co_rwlock_init(struct co_rwlock *l)
{
	l->holders = 0;
	list_init(&l->waiters);
}

static void rwlock_lock(struct co_rwlock *l, bool writer)
{
	bool compatible = writer ? l->holders == 0 : l->holders >= 0;
	struct waiter w;

	if (compatible && list_empty(&l->waiters)) {
		assert(sched.current);
		l->holders = writer ? -1 : l->holders + 1;
		return;
	}
	waiter_init(&w);
	w.writer = writer;
	list_add_tail(&l->waiters, &w.node);
	co_wait(); /* unlock has made us a holder */
}

void co_rwlock_read(struct co_rwlock *l)
{
	rwlock_lock(l, false);
}

void co_rwlock_write(struct co_rwlock *l)
{
	rwlock_lock(l, true);
}

void co_rwlock_unlock(struct co_rwlock *l)
{
	assert(l->holders != 0);
	l->holders = l->holders < 0 ? 0 : l->holders - 1;
	while (!list_empty(&l->waiters)) {
		struct waiter *w = list_first(&l->waiters, struct waiter, node);

		if (w->writer ? l->holders != 0 : l->holders < 0)
			break;
		l->holders = w->writer ? -1 : l->holders + 1;
		waiter_wake(w);
	}
}
