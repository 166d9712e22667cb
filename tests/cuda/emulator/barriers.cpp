// Barriers of a block, of some of its warps, and of the whole grid.
#include <algorithm>

#include "emulator/state.h"

namespace emulator {

namespace {

// Clocks have 16 bits in the shadow.
constexpr std::uint32_t kMostBarriers = 65534;

bool same_line(const Site& a, const Site& b) {
    return a.line == b.line && !std::strcmp(a.file, b.file);
}

void wake(Block& block, State state) {
    for (Warp& warp : block.warps) {
        for (std::uint32_t lanes = warp.live; lanes; lanes &= lanes - 1) {
            Fiber* fiber = warp.fiber[__builtin_ctz(lanes)];
            if (fiber->state == state) make_ready(fiber);
        }
    }
}

void release_block(Block& block) {
    ++machine.counts.barriers;
    block.arrived = 0;
    block.result = block.votes;
    block.voting = false;
    for (auto& clock : block.warp_clock) {
        if (++clock > kMostBarriers) stop("more than 65534 barriers in one block");
    }
    const std::size_t warps = block.warps.size();
    for (std::size_t w = 0; w < warps; ++w) {
        std::copy(block.warp_clock.begin(), block.warp_clock.end(),
                  block.warp_seen.begin() + std::ptrdiff_t(w * warps));
    }
    wake(block, State::barrier);
}

void release_grid() {
    machine.grid_arrived = 0;
    machine.base_serial = ++machine.serial;
    for (auto& block : machine.blocks) {
        block->serial = machine.serial++;
        wake(*block, State::grid);
    }
}

// All that took part know what all had done when they came; who only arrived learns nothing.
void release_named(Block& block, NamedBarrier& named) {
    ++machine.counts.barriers;
    const std::size_t warps = block.warps.size();
    std::vector<std::uint32_t> seen(warps, 0);
    for (std::size_t w = 0; w < warps; ++w) {
        if (!(named.warps >> w & 1)) continue;
        const std::uint32_t clock = ++block.warp_clock[w];
        for (std::size_t v = 0; v < warps; ++v) {
            seen[v] = std::max(seen[v], block.warp_seen[w * warps + v]);
        }
        seen[w] = std::max(seen[w], clock);
    }
    for (std::size_t w = 0; w < warps; ++w) {
        if (!(named.waiting_warps >> w & 1)) continue;
        std::copy(seen.begin(), seen.end(), block.warp_seen.begin() + std::ptrdiff_t(w * warps));
    }
    const auto waiting = std::move(named.waiting);
    named = NamedBarrier{};
    for (Fiber* fiber : waiting) make_ready(fiber);
}

}  // namespace

void barrier(Site site) {
    Block& block = *machine.current->block;
    if (block.arrived == 0) {
        block.barrier_site = site;
    } else if (!same_line(block.barrier_site, site)) {
        fail("divergent __syncthreads: this thread is at " + text(site) +
             ", others of the block wait at " + text(block.barrier_site));
    }
    if (++block.arrived == block.live) {
        release_block(block);
    } else {
        wait_here(State::barrier, site);
    }
}

int barrier_vote(Site site, int predicate, Vote vote) {
    Block& block = *machine.current->block;
    if (!block.voting) {
        block.voting = true;
        block.votes = vote == Vote::all;
    }
    switch (vote) {
        case Vote::count:
            block.votes += predicate != 0;
            break;
        case Vote::all:
            block.votes = block.votes && predicate;
            break;
        case Vote::any:
            block.votes = block.votes || predicate;
    }
    barrier(site);
    return block.result;
}

void named_barrier(Site site, int id, int threads, bool wait) {
    Fiber* fiber = machine.current;
    Block& block = *fiber->block;
    const std::string at = " at " + text(site);
    if (id < 1 || id > 15) fail("a named barrier is numbered 1 to 15," + at);
    if (threads <= 0 || threads % 32 || threads > int(machine.block_threads)) {
        fail("a named barrier takes a multiple of 32 threads, at most the block's," + at);
    }
    NamedBarrier& named = block.named[id];
    if (named.expected == 0) named.expected = threads;
    if (named.expected != threads) {
        fail("named barrier " + std::to_string(id) + ": thread counts differ" + at);
    }
    named.warps |= 1u << fiber->warp->id;
    if (wait) named.waiting_warps |= 1u << fiber->warp->id;
    if (++named.arrived < named.expected) {
        if (!wait) return;
        named.waiting.push_back(fiber);
        return wait_here(State::named, site);
    }
    if (__builtin_popcount(named.warps) * 32 != named.expected) {
        fail("named barrier " + std::to_string(id) + ": only some lanes of a warp took part," + at);
    }
    release_named(block, named);
}

void grid_barrier(Site site) {
    if (!machine.cooperative) {
        fail("grid_sync in a launch that is not cooperative, at " + text(site));
    }
    if (++machine.grid_arrived == machine.grid_live) {
        release_grid();
    } else {
        wait_here(State::grid, site);
    }
}

void leave_barriers(Block& block) {
    if (block.live && block.arrived == block.live) release_block(block);
    if (machine.grid_live && machine.grid_arrived == machine.grid_live) release_grid();
}

}  // namespace emulator
