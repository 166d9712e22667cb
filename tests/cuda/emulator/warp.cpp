// Operations of a warp: a rendezvous of lanes, then one function for all of them.
#include <algorithm>
#include <cstdio>

#include "emulator/builtins.h"
#include "emulator/state.h"

namespace emulator {

namespace {

std::string hex(std::uint32_t mask) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
}

// Lane clocks have 16 bits in the shadow.
constexpr std::uint16_t kMostSyncs = 65534;

void run_operation(Warp& warp, const Operation& operation, std::uint32_t lanes) {
    ++machine.counts.warp_operations;
    machine.for_warp = true;
    operation.body(warp.words, lanes);
    machine.for_warp = false;
    warp.waiting &= ~lanes;
}

void sync_body(WarpWords&, std::uint32_t mask) {
    if constexpr (!kStrict) return;
    Warp& warp = *machine.current->warp;
    std::uint16_t seen[32] = {};
    for (std::uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        const int l = __builtin_ctz(lanes);
        if (++warp.lane_clock[l] > kMostSyncs) stop("more than 65534 __syncwarp in one thread");
        warp.lane_seen[l][l] = warp.lane_clock[l];
        for (int k = 0; k < 32; ++k) seen[k] = std::max(seen[k], warp.lane_seen[l][k]);
    }
    for (std::uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        std::memcpy(warp.lane_seen[__builtin_ctz(lanes)], seen, sizeof seen);
    }
}

// The same value for every lane.
void tell_all(WarpWords& words, std::uint32_t mask, std::uint32_t value) {
    for (int l = 0; l < 32; ++l) {
        if (mask >> l & 1) words.out[l][0] = value;
    }
}

// Which lanes have a first word that is not 0.
std::uint32_t voted(const WarpWords& words, std::uint32_t mask) {
    std::uint32_t votes = 0;
    for (int l = 0; l < 32; ++l) {
        if ((mask >> l & 1) && words.in[l][0]) votes |= 1u << l;
    }
    return votes;
}

}  // namespace

void warp_operation(const char* name, WarpBody body, std::uint32_t mask, bool aligned, Site site,
                    const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes) {
    Fiber* fiber = machine.current;
    Warp& warp = *fiber->warp;
    const std::uint32_t own = 1u << fiber->lane;
    fiber->site = site;
    if (!(mask & own)) {
        fail(std::string(name) + " at " + text(site) + ": the mask does not name the calling lane");
    }
    if (aligned && (mask != 0xffffffffu || warp.live != 0xffffffffu)) {
        fail(std::string(name) + " at " + text(site) + ": all 32 lanes of the warp must take part");
    }
    if (const std::uint32_t others = warp.waiting & mask) {
        const Operation& other = warp.operation[__builtin_ctz(others)];
        const bool same_line =
            other.site.line == site.line && !std::strcmp(other.site.file, site.file);
        if (other.body != body || std::strcmp(other.name, name) || other.mask != mask ||
            (aligned && !same_line)) {
            fail("divergent warp: this lane is in " + std::string(name) + " with mask " +
                 hex(mask) + " at " + text(site) + ", another lane waits in " + other.name +
                 " with mask " + hex(other.mask) + " at " + text(other.site));
        }
    }
    if (in_bytes) std::memcpy(warp.words.in[fiber->lane], in, in_bytes);
    warp.operation[fiber->lane] = {name, body, mask, site};
    warp.waiting |= own;
    const std::uint32_t needed = mask & warp.live;
    if ((warp.waiting & needed) == needed) {
        run_operation(warp, warp.operation[fiber->lane], needed);
        for (std::uint32_t rest = needed & ~own; rest; rest &= rest - 1) {
            make_ready(warp.fiber[__builtin_ctz(rest)]);
        }
    } else {
        wait_here(State::warp, site);
    }
    if (out_bytes) std::memcpy(out, warp.words.out[fiber->lane], out_bytes);
}

// Lanes that have ended do not count: an operation may have waited for this one only.
void leave_operations(Warp& warp, std::uint32_t lane) {
    for (std::uint32_t lanes = warp.waiting; lanes; lanes &= lanes - 1) {
        const Operation operation = warp.operation[__builtin_ctz(lanes)];
        const std::uint32_t needed = operation.mask & warp.live;
        if (!(operation.mask >> lane & 1) || (warp.waiting & needed) != needed) continue;
        run_operation(warp, operation, needed);
        for (std::uint32_t rest = needed; rest; rest &= rest - 1) {
            make_ready(warp.fiber[__builtin_ctz(rest)]);
        }
        return;
    }
}

void syncwarp(std::uint32_t mask, Site site) {
    warp_operation("__syncwarp", sync_body, mask, false, site, nullptr, 0, nullptr, 0);
}

int lane() {
    return int(machine.current->lane);
}

// ---- shuffles: which lane is read, with lanes in groups of `width`
// -------------------------------

int shuffle_source(int from, int width) {
    return (lane() & ~(width - 1)) | (from & (width - 1));
}
int shuffle_up_source(int delta, int width) {
    const int l = lane(), source = l - delta;
    return source < (l & ~(width - 1)) ? l : source;
}
int shuffle_down_source(int delta, int width) {
    const int l = lane(), source = l + delta;
    return source > (l | (width - 1)) ? l : source;
}
int shuffle_xor_source(int mask, int width) {
    const int l = lane(), source = l ^ mask;
    return source > (l | (width - 1)) ? l : source;
}

void shuffle_body(WarpWords& words, std::uint32_t mask) {
    for (std::uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        const int l = __builtin_ctz(lanes), source = int(words.in[l][2]);
        if (!(mask >> source & 1)) {
            stop("shuffle at " + text(machine.current->warp->fiber[l]->site) + ": lane " +
                 std::to_string(l) + " reads lane " + std::to_string(source) +
                 ", which does not take part (ended, or not in the mask)");
        }
        std::memcpy(words.out[l], words.in[source], 8);
    }
}

// ---- votes
// ---------------------------------------------------------------------------------------

void ballot_body(WarpWords& words, std::uint32_t mask) {
    tell_all(words, mask, voted(words, mask));
}
void all_body(WarpWords& words, std::uint32_t mask) {
    tell_all(words, mask, voted(words, mask) == mask);
}
void any_body(WarpWords& words, std::uint32_t mask) {
    tell_all(words, mask, voted(words, mask) != 0);
}
void match_body(WarpWords& words, std::uint32_t mask) {
    for (int l = 0; l < 32; ++l) {
        if (!(mask >> l & 1)) continue;
        std::uint32_t same = 0;
        for (int k = 0; k < 32; ++k) {
            if ((mask >> k & 1) && words.in[k][0] == words.in[l][0]) same |= 1u << k;
        }
        words.out[l][0] = same;
    }
}

}  // namespace emulator
