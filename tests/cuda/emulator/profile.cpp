// Memory traffic by line of source: the one sign of speed that can be had without a GPU.
//
// The k-th execution of an instruction by each lane of a warp is taken as one request of the warp.
// Global memory moves in sectors of 32 bytes; shared memory has 32 banks of 4 bytes, and lanes that
// ask one bank for different words are served one after the other.
#include <algorithm>
#include <cstdio>
#include <set>
#include <unordered_map>

#include "emulator/state.h"

namespace emulator {

namespace {

struct Request {
    std::uint32_t lanes = 0, bytes = 0;
    std::uint32_t offset[32];
};

struct Line {
    std::uint64_t requests = 0, moved = 0, ideal = 0;  // sectors, or wavefronts
};

// A line, by address of code or by Site; shared or global; read or written.
struct Place {
    std::uint64_t line;
    bool shared, write;
    bool operator<(const Place& o) const {
        return std::tie(line, shared, write) < std::tie(o.line, o.shared, o.write);
    }
};

struct Instruction {
    std::uint64_t line;
    bool write;
    std::uint32_t warp;
    bool operator==(const Instruction& o) const {
        return line == o.line && write == o.write && warp == o.warp;
    }
};
struct InstructionHash {
    std::size_t operator()(const Instruction& i) const {
        return (i.line << 1 | std::uint64_t(i.write)) * 0x9E3779B97F4A7C15ull ^ i.warp;
    }
};
struct Executions {
    std::uint32_t count[32] = {};
    std::unordered_map<std::uint32_t, Request> open;
};

std::unordered_map<Instruction, Executions, InstructionHash> executions;
std::map<Place, Line> lines;
constexpr std::uint64_t kFromSite = std::uint64_t(1) << 60;
std::map<std::uint64_t, std::string> sites;

void count_global(Line& line, const Request& request) {
    std::set<std::uint32_t> sectors, words;
    for (std::uint32_t lanes = request.lanes; lanes; lanes &= lanes - 1) {
        const std::uint32_t offset = request.offset[__builtin_ctz(lanes)];
        const std::uint32_t end = offset + request.bytes;
        for (std::uint32_t s = offset / 32; s <= (end - 1) / 32; ++s) sectors.insert(s);
        for (std::uint32_t b = offset; b < end; b += 4) words.insert(b / 4);
    }
    line.moved += sectors.size();
    line.ideal += (words.size() * 4 + 31) / 32;
}

void count_shared(Line& line, const Request& request) {
    // Lanes that are served together.
    const std::uint32_t group = request.bytes <= 4 ? 32 : request.bytes == 8 ? 16 : 8;
    for (std::uint32_t first = 0; first < 32; first += group) {
        std::set<std::uint32_t> words[32];
        for (std::uint32_t l = first; l < first + group; ++l) {
            if (!(request.lanes >> l & 1)) continue;
            for (std::uint32_t b = 0; b < request.bytes; b += 4) {
                const std::uint32_t word = (request.offset[l] + b) / 4;
                words[word % 32].insert(word);
            }
        }
        std::size_t worst = 0;
        for (const auto& bank : words) worst = std::max(worst, bank.size());
        if (worst == 0) continue;
        line.moved += worst;
        ++line.ideal;
    }
}

void close_request(std::uint64_t where, bool write, const Request& request) {
    const bool shared = request.offset[__builtin_ctz(request.lanes)] < kSharedBytes;
    Line& line = lines[{where, shared, write}];
    ++line.requests;
    shared ? count_shared(line, request) : count_global(line, request);
}

}  // namespace

void profile_access(const void* pointer, std::size_t bytes, bool write, const Fiber* fiber,
                    std::uint32_t code, Site site) {
    std::uint64_t where = code;
    if (!code) {
        where =
            (std::uint64_t(std::uintptr_t(site.file)) << 12 ^ std::uint64_t(site.line)) | kFromSite;
        sites.emplace(where, text(site));
    }
    Executions& seen = executions[{where, write, fiber->warp->id}];
    const std::uint32_t turn = seen.count[fiber->lane]++;
    Request& request = seen.open[turn];
    request.lanes |= 1u << fiber->lane;
    request.bytes = std::uint32_t(bytes);
    request.offset[fiber->lane] = std::uint32_t(offset_of(pointer));
    if (request.lanes != fiber->warp->live) return;
    close_request(where, write, request);
    seen.open.erase(turn);
}

void profile_flush() {
    for (const auto& [instruction, seen] : executions) {
        for (const auto& one : seen.open) {
            close_request(instruction.line, instruction.write, one.second);
        }
    }
    executions.clear();
}

std::string profile() {
    profile_flush();
    std::map<std::tuple<std::string, bool, bool>, Line> by_text;
    for (const auto& [place, line] : lines) {
        const std::string where =
            place.line & kFromSite ? sites[place.line] : line_of(std::uint32_t(place.line));
        Line& sum = by_text[{where, place.shared, place.write}];
        sum.requests += line.requests;
        sum.moved += line.moved;
        sum.ideal += line.ideal;
    }
    std::string result;
    for (const auto& [key, line] : by_text) {
        const auto& [where, shared, write] = key;
        char row[400];
        std::snprintf(
            row, sizeof row, "%-44s %s %-5s requests %8llu %s %8llu ideal %8llu x%.2f\n",
            where.c_str(), shared ? "shared" : "global", write ? "write" : "read",
            static_cast<unsigned long long>(line.requests), shared ? "wavefronts" : "sectors   ",
            static_cast<unsigned long long>(line.moved),
            static_cast<unsigned long long>(line.ideal), double(line.moved) / double(line.ideal));
        result += row;
    }
    lines.clear();
    return result;
}

}  // namespace emulator
