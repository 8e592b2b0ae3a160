// The fibers of shim.h: runs the blocks of a launch one after another, the threads of a block as
// fibers that change at barriers and warp-wide functions only, in an order given by the seed.

#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace shim {
namespace {

// No power of two: fibers whose stacks begin in the same lines of the cache push each other out.
constexpr size_t STACK_BYTES = (128 << 10) + 3 * 64;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t MAX_SMEM_BYTES = 256 << 10;
// Yields in a row, with nothing else happening, after which waiting loops are a deadlock.
constexpr uint64_t MAX_YIELDS = 4000000;

#if defined(__x86_64__)
using Context = void*;
extern "C" void shim_switch(Context* save, Context load) __asm__("shim_switch");
__asm__(
    ".local shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
void prepare(Context* context, char* stack, void (*start)()) {
  // Six registers, the entry, and a slot that keeps the stack aligned at the entry.
  void** top = reinterpret_cast<void**>(stack + STACK_BYTES) - 8;
  memset(top, 0, 8 * sizeof(void*));
  top[6] = reinterpret_cast<void*>(start);
  *context = top;
}
void change(Context* save, Context* load) { shim_switch(save, *load); }
#else
using Context = ucontext_t;
void prepare(Context* context, char* stack, void (*start)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = STACK_BYTES;
  context->uc_link = nullptr;
  makecontext(context, start, 0);
}
void change(Context* save, Context* load) { swapcontext(save, load); }
#endif

struct Entry {
  std::string name;
  void (*entry)();
  CallFn call;
  const uint8_t* param_sizes;
  size_t num_params;
};

std::vector<const char* (*)()>& block_checks() {
  static std::vector<const char* (*)()> all;
  return all;
}

std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

struct Copy {
  void* to;
  const void* from;
  uint32_t bytes, bytes_read;
};

enum class State { Ready, Barrier, Collective, Finished };

struct Fiber {
  Context context;
  uint3 index;
  uint32_t number;
  State state;
  uint32_t mask;
  CollectiveFn fn;
  void* payload;
  std::vector<std::vector<Copy>> copies;  // the last group is the open one
  uint32_t num_fences;                    // of the asynchronous proxy
};

// Who has copied 16 bytes of shared memory last, and after how many fences of its own.
struct Copied {
  static constexpr uint32_t UNDER_WAY = 0xffffffff;
  uint32_t fiber, num_fences;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<uint32_t> in_collective;  // per warp: lanes that wait in a warp-wide function
  std::vector<Fiber*> ready;
  size_t first_ready = 0;
  Fiber* current = nullptr;
  Context scheduler;
  uint32_t num_finished = 0, num_at_barrier = 0, predicates = 0, last_predicates = 0;
  uint64_t seed = 0, random = 0, yields = 0;
  const Entry* entry = nullptr;
  void** args = nullptr;
  char* stacks = nullptr;
  size_t num_stacks = 0;
  char* smem = nullptr;
  size_t smem_bytes = 0;
  std::vector<Copied> copied;  // of each 16 bytes of the block's shared memory
  std::string error;

  ~Block() {
    if (stacks != nullptr) munmap(stacks, num_stacks * STACK_BYTES);
    if (smem != nullptr) munmap(smem, MAX_SMEM_BYTES + PAGE_BYTES);
  }
} the_block;

char* map_pages(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) abort();
  return static_cast<char*>(at);
}

// Below `end`.
size_t next_random(Block& b, size_t end) {
  b.random ^= b.random << 13;
  b.random ^= b.random >> 7;
  b.random ^= b.random << 17;
  return static_cast<size_t>(static_cast<unsigned __int128>(b.random) * end >> 64);
}

// Seed 0 runs fibers in the order in which they became ready. Odd seeds take any ready fiber,
// even ones the newest, which drives one warp as far ahead of the others as barriers let it.
Fiber* take_ready(Block& b) {
  if (b.seed == 0) {
    Fiber* next = b.ready[b.first_ready++];
    if (b.first_ready == b.ready.size()) b.ready.clear(), b.first_ready = 0;
    return next;
  }
  if (b.seed % 2 == 1 || b.yields > 0)
    std::swap(b.ready[next_random(b, b.ready.size())], b.ready.back());
  Fiber* next = b.ready.back();
  b.ready.pop_back();
  return next;
}

void make_ready(Block& b, Fiber& fiber) {
  fiber.state = State::Ready;
  b.ready.push_back(&fiber);
  b.yields = 0;
}

// Runs the next fiber that is ready; without one, or after an error, the scheduler.
void run_others(Block& b) {
  Fiber* self = b.current;
  if (b.ready.empty() || !b.error.empty()) return change(&self->context, &b.scheduler);
  b.current = take_ready(b);
  threadIdx = b.current->index;
  if (b.current != self) change(&self->context, &b.current->context);
}

void run_fiber() {
  Block& b = the_block;
  b.entry->call(b.entry->entry, b.args);
  b.current->state = State::Finished;
  ++b.num_finished;
  run_others(b);
}

void start_fibers(Block& b) {
  b.ready.clear();
  b.first_ready = 0;
  b.num_finished = b.num_at_barrier = b.predicates = 0;
  b.in_collective.assign((b.fibers.size() + 31) / 32, 0);
  uint32_t number = 0;
  for (Fiber& fiber : b.fibers) {
    fiber.number = number;
    fiber.index = {number % blockDim.x, number / blockDim.x % blockDim.y,
                   number / blockDim.x / blockDim.y};
    if (fiber.copies.size() != 1 || !fiber.copies[0].empty()) fiber.copies.assign(1, {});
    fiber.num_fences = 1;
    prepare(&fiber.context, b.stacks + STACK_BYTES * number++, run_fiber);
    make_ready(b, fiber);
  }
  if (b.seed != 0)
    for (size_t i = b.ready.size(); i > 1; --i)
      std::swap(b.ready[i - 1], b.ready[next_random(b, i)]);
  const size_t smem_bytes = b.smem + MAX_SMEM_BYTES - static_cast<char*>(dynamic_smem());
  memset(dynamic_smem(), 0xff, smem_bytes);
  b.copied.assign(smem_bytes / 16, {});
}

void describe_deadlock(Block& b) {
  uint32_t in_collective = 0;
  for (Fiber& fiber : b.fibers) in_collective += fiber.state == State::Collective;
  char text[256];
  snprintf(text, sizeof(text),
           "divergent barrier in block (%u,%u,%u) of %s: of %zu threads %u wait at __syncthreads, "
           "%u in a warp-wide function, %u have returned",
           blockIdx.x, blockIdx.y, blockIdx.z, b.entry->name.c_str(), b.fibers.size(),
           b.num_at_barrier, in_collective, b.num_finished);
  b.error = text;
}

bool run_block(Block& b) {
  start_fibers(b);
  b.current = take_ready(b);
  threadIdx = b.current->index;
  change(&b.scheduler, &b.current->context);
  if (b.error.empty() && b.num_finished < b.fibers.size()) describe_deadlock(b);
  for (auto check : block_checks()) {
    const char* problem = check();
    if (b.error.empty() && problem != nullptr)
      b.error = std::string(problem) + " in " + b.entry->name;
  }
  return b.error.empty();
}

// Marks what a copy of the current fiber writes.
void mark_copied(const Copy& copy, uint32_t num_fences) {
  Block& b = the_block;
  size_t first = (static_cast<char*>(copy.to) - static_cast<char*>(dynamic_smem())) / 16;
  if (copy.bytes == 16 && first < b.copied.size())
    b.copied[first] = {b.current->number, num_fences};
}

void apply(const Copy& copy) {
  mark_copied(copy, the_block.current->num_fences);
  memcpy(copy.to, copy.from, copy.bytes_read);
  memset(static_cast<char*>(copy.to) + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
}

}  // namespace

void* dynamic_smem() {
  // Ends at an unmapped page, so that an access past the end is a fault.
  Block& b = the_block;
  return b.smem + MAX_SMEM_BYTES - (b.smem_bytes + 127) / 128 * 128;
}

void register_entry(const char* name, void (*entry)(), CallFn call, const uint8_t* param_sizes,
                    size_t num_params) {
  entries().push_back({name, entry, call, param_sizes, num_params});
}

void fail(const char* what) {
  Block& b = the_block;
  b.error = std::string(what) + " in " + b.entry->name;
  run_others(b);
  abort();
}

void yield() {
  Block& b = the_block;
  if (++b.yields > MAX_YIELDS) fail("a loop waits for a value that no thread writes");
  if (b.seed == 0)
    b.ready.push_back(b.current);
  else
    b.ready.insert(b.ready.begin(), b.current);
  run_others(b);
}

// Sleeps: where there are more ranks than cores, threads that only yield starve each other.
void let_others_run() { usleep(10); }

uint32_t block_barrier(uint32_t predicate) {
  Block& b = the_block;
  Fiber* self = b.current;
  self->state = State::Barrier;
  b.predicates += predicate;
  if (++b.num_at_barrier == b.fibers.size()) {
    b.last_predicates = b.predicates;
    b.num_at_barrier = b.predicates = 0;
    size_t first = b.seed == 0 ? 0 : next_random(b, b.fibers.size());
    for (size_t i = 0; i < b.fibers.size(); ++i)
      make_ready(b, b.fibers[(first + i) % b.fibers.size()]);
  }
  run_others(b);
  return b.last_predicates;
}

void warp_collective(uint32_t mask, void* payload, CollectiveFn fn) {
  Block& b = the_block;
  Fiber* self = b.current;
  Fiber* warp = &b.fibers[self->number & ~31u];
  size_t lanes = b.fibers.size() - (self->number & ~31u);
  // Lanes that a partial last warp lacks take no part, as on the device.
  uint32_t all = lanes < 32 ? (1u << lanes) - 1 : 0xffffffffu;
  mask &= all;
  if (!(mask >> (self->number & 31) & 1)) fail("a lane calls a warp-wide function without itself");
  self->state = State::Collective;
  self->mask = mask;
  self->fn = fn;
  self->payload = payload;
  uint32_t& waiting = b.in_collective[self->number / 32];
  waiting |= 1u << (self->number & 31);
  if ((waiting & mask) != mask) return run_others(b);
  waiting &= ~mask;
  void* payloads[32] = {};
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    Fiber& lane = warp[__builtin_ctz(left)];
    if (lane.fn != fn || lane.mask != mask) fail("lanes of one warp in different warp functions");
    payloads[__builtin_ctz(left)] = lane.payload;
  }
  if (fn != nullptr) fn(payloads, mask);
  for (uint32_t left = mask; left != 0; left &= left - 1)
    make_ready(b, warp[__builtin_ctz(left)]);
  run_others(b);
}

void copy_async(void* to, const void* from, uint32_t bytes, uint32_t bytes_read) {
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fail("cp.async with an unaligned address");
  // Whoever reads before waiting sees NaN.
  memset(to, 0xff, bytes);
  Copy copy{to, from, bytes, bytes_read};
  mark_copied(copy, Copied::UNDER_WAY);
  the_block.current->copies.back().push_back(copy);
}

void commit_copies() { the_block.current->copies.emplace_back(); }

void wait_copies(uint32_t groups_left) {
  auto& groups = the_block.current->copies;
  while (groups.size() > groups_left + 1) {
    for (const Copy& copy : groups.front()) apply(copy);
    groups.erase(groups.begin());
  }
}

void fence_async_proxy() { ++the_block.current->num_fences; }

const void* read_by_async_proxy(uint32_t address) {
  Block& b = the_block;
  // The only place in the block's memory whose address ends so.
  uintptr_t base = reinterpret_cast<uintptr_t>(dynamic_smem());
  size_t offset = (address - base) % MAX_SMEM_BYTES;
  if (offset + 16 > b.smem_bytes) fail("a product reads past the block's shared memory");
  const Copied& copied = b.copied[offset / 16];
  if (copied.num_fences >= b.fibers[copied.fiber].num_fences)
    fail("a product reads a copy that has not come, or was not fenced");
  return reinterpret_cast<const void*>(base + offset);
}

void check_after_blocks(const char* (*check)()) { block_checks().push_back(check); }

}  // namespace shim

#define VISIBLE extern "C" __attribute__((visibility("default")))

VISIBLE const char* shim_error() { return shim::the_block.error.c_str(); }

// Sizes in bytes of a kernel's parameters, and how many there are; -1 where there is no such kernel.
VISIBLE int shim_param_sizes(const char* name, const uint8_t** sizes) {
  for (const shim::Entry& entry : shim::entries()) {
    if (entry.name != name) continue;
    *sizes = entry.param_sizes;
    return static_cast<int>(entry.num_params);
  }
  return -1;
}

VISIBLE int shim_launch(const char* name, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx,
                        uint32_t by, uint32_t bz, uint64_t dynamic_smem_bytes, void** args,
                        uint64_t seed) {
  using namespace shim;
  Block& b = the_block;
  b.error.clear();
  b.entry = nullptr;
  for (const Entry& entry : entries())
    if (entry.name == name) b.entry = &entry;
  size_t num_threads = (size_t)bx * by * bz;
  if (b.entry == nullptr) b.error = std::string("no entry named ") + name;
  else if (num_threads == 0 || num_threads > 1024) b.error = "a block has 1 to 1024 threads";
  else if (dynamic_smem_bytes > MAX_SMEM_BYTES) b.error = "too much dynamic shared memory";
  if (!b.error.empty()) return 1;
  if (b.smem == nullptr) {
    b.smem = map_pages(MAX_SMEM_BYTES + PAGE_BYTES);
    mprotect(b.smem + MAX_SMEM_BYTES, PAGE_BYTES, PROT_NONE);
  }
  if (b.num_stacks < num_threads) {
    if (b.stacks != nullptr) munmap(b.stacks, b.num_stacks * STACK_BYTES);
    b.stacks = map_pages(num_threads * STACK_BYTES);
    b.num_stacks = num_threads;
  }
  b.smem_bytes = dynamic_smem_bytes;
  b.seed = seed;
  b.random = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  b.args = args;
  b.fibers.resize(num_threads);
  blockDim = {bx, by, bz};
  gridDim = {gx, gy, gz};
  for (uint32_t z = 0; z < gz; ++z)
    for (uint32_t y = 0; y < gy; ++y)
      for (uint32_t x = 0; x < gx; ++x) {
        blockIdx = {x, y, z};
        if (!run_block(b)) return 2;
      }
  return 0;
}
