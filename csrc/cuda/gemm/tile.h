// Tiles of a product's two matrices in shared memory, and where their elements come from.
//
// A product is sum over p of a(i, p) b(p, j). Both sides are alike to the kernels: `rows` (i of A,
// j of B) and a depth p. A source knows where element (row, p) lies, and fills tiles by
// asynchronous copies, with zeros where there is no element. Offsets are 64 bits; positions within
// the axes of an image are of type I, int where they fit.
#pragma once
#include "cuda/gpu.h"

namespace fusednn::cuda {

// kRows x kDepth elements, as of[depth][row] or, kByRow, as of[row][depth]. The padding spreads
// what a warp reads at once over all banks.
template <class T, int kRows_, int kDepth_, int kPad, bool kByRow_>
struct alignas(16) Tile {
    static constexpr int kRows = kRows_, kDepth = kDepth_;
    static constexpr bool kByRow = kByRow_;
    T of[kByRow ? kRows : kDepth][kByRow ? kDepth + 16 / int(sizeof(T)) : kRows + kPad];

    FUSEDNN_DEVICE T& at(int row, int depth) {
        return of[kByRow ? row : depth][kByRow ? depth : row];
    }
    FUSEDNN_DEVICE const T& at(int row, int depth) const {
        return of[kByRow ? row : depth][kByRow ? depth : row];
    }
};

// What is loaded or stored at once.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Run {
    T of[kCount];
};

// The rows of a tile that exist, and the depth that is left from its first element on.
struct TileEdges {
    i64 row0;
    int rows;
    i64 depth0, depth_end;
};

// Single elements: which of a tile's a thread copies. Each stays at one depth; kAlong: lanes run
// along the depth, because there neighbours in memory are, else along the rows.
template <class Tile, int kThreads, bool kAlong>
struct Lane {
    static_assert(kThreads % Tile::kDepth == 0, "every thread has one depth");
    static constexpr int kStep = kThreads / Tile::kDepth;
    int depth, row;
    FUSEDNN_DEVICE Lane()
        : depth(int(threadIdx.x) / (kAlong ? 1 : kStep) % Tile::kDepth),
          row(kAlong ? int(threadIdx.x) / Tile::kDepth : int(threadIdx.x) % kStep) {}
};

// The elements of a tile that a thread copies, one by one: find(row) points to an element, or to
// null for a zero. Asynchronous copies move four bytes at least: elements of two are loaded and
// stored, eight of them under way at once.
template <class Tile, class Mine, class Find>
FUSEDNN_DEVICE void copy_halves(Tile& tile, const Mine& mine, const Find& find) {
    constexpr int kAtOnce = 8;
    static_assert(Tile::kRows / Mine::kStep % kAtOnce == 0, "every thread has all of them");
#pragma unroll 1
    for (int first = mine.row; first < Tile::kRows; first += Mine::kStep * kAtOnce) {
        std::uint16_t got[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            const HalfBits* from = find(first + k * Mine::kStep);
            got[k] = from ? from->bits : std::uint16_t(0);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            tile.at(first + k * Mine::kStep, mine.depth).bits = got[k];
        }
    }
}

// ---- matrices in memory
// --------------------------------------------------------------------------

// Element (i, p) of batch z at data[z * batch + i * row + p * depth]. kAlong: depth is 1.
template <class T, bool kAlong_>
struct Strided {
    using Value = T;
    static constexpr bool kAlong = kAlong_, kHasRows = false;
    struct Row {};
    struct State {};

    const T* data;
    i64 batch, row, depth;
    bool wide;  // 16 bytes can be read at once along the direction of stride 1

    void prepare(int) {}
    FUSEDNN_DEVICE i64 batch_offset(i64 z) const { return z * batch; }
    FUSEDNN_DEVICE Row row_of(i64) const { return {}; }
    FUSEDNN_DEVICE State begin(i64) const { return {}; }

    template <int kThreads, class Tile>
    FUSEDNN_DEVICE void copy(Tile& tile, const T* base, const Row*, State&,
                             const TileEdges& edges) const {
        if (wide && Tile::kByRow == kAlong) {
            copy_runs<kThreads>(tile, base, edges);
        } else {
            copy_single<kThreads>(tile, base, edges);
        }
    }

  private:
    template <int kThreads, class Tile>
    FUSEDNN_DEVICE void copy_runs(Tile& tile, const T* base, const TileEdges& edges) const {
        constexpr int kRun = 16 / int(sizeof(T));
        constexpr int kRuns = (kAlong ? Tile::kDepth : Tile::kRows) / kRun;
        constexpr int kLines = kAlong ? Tile::kRows : Tile::kDepth, kStep = kThreads / kRuns;
        static_assert(kThreads % kRuns == 0, "every thread stays in its column of runs");
        const i64 deep = edges.depth_end - edges.depth0;
        const int first = int(threadIdx.x) % kRuns * kRun;
        int line = int(threadIdx.x) / kRuns;
        const T* from = base + (edges.row0 + (kAlong ? line : first)) * row +
                        (edges.depth0 + (kAlong ? first : line)) * depth;
        const i64 step = kStep * (kAlong ? row : depth);
#pragma unroll 1
        for (; line < kLines; line += kStep, from += step) {
            const int r = kAlong ? line : first, p = kAlong ? first : line;
            const i64 left = r >= edges.rows || p >= deep ? 0 : kAlong ? deep - p : edges.rows - r;
            const int bytes = int(left < kRun ? left : kRun) * int(sizeof(T));
            copy_async<16>(&tile.at(r, p), bytes ? from : base, bytes);
        }
    }

    struct Find {
        const T* from;
        i64 row;
        int rows;  // that exist
        FUSEDNN_DEVICE const T* operator()(int r) const {
            return r < rows ? from + r * row : nullptr;
        }
    };

    template <int kThreads, class Tile>
    FUSEDNN_DEVICE void copy_single(Tile& tile, const T* base, const TileEdges& edges) const {
        using Mine = Lane<Tile, kThreads, kAlong>;
        const Mine mine;
        const bool real = edges.depth0 + mine.depth < edges.depth_end;
        if constexpr (sizeof(T) == 2) {
            const T* first = base + edges.row0 * row + (edges.depth0 + mine.depth) * depth;
            copy_halves(tile, mine, Find{first, row, real ? edges.rows : 0});
        } else {
            const T* from =
                base + (edges.row0 + mine.row) * row + (edges.depth0 + mine.depth) * depth;
#pragma unroll 2
            for (int r = mine.row; r < Tile::kRows; r += Mine::kStep, from += Mine::kStep * row) {
                const bool inside = real && r < edges.rows;
                copy_async<sizeof(T)>(&tile.at(r, mine.depth), inside ? from : base,
                                      inside ? int(sizeof(T)) : 0);
            }
        }
    }
};

// ---- matrices that are windows over images
// -------------------------------------------------------

// Where a position or a tap points: a place in an image (possibly outside) and an offset in memory.
// Offsets add up modulo 2^32 (2^64): those of elements are below half of that.
template <class I>
struct alignas(sizeof(I) == 4 ? 16 : 8) Point {
    I d, h, w, offset;
    FUSEDNN_DEVICE i64 offset_with(I more) const {
        using U = std::make_unsigned_t<I>;
        return i64(I(U(offset) + U(more)));
    }
};

// Points of a stack of boxes, counted in row-major order: number i has digits (outer, d, h, w), the
// last three below `size`, and stands at digit * step + start in an image of the given extents.
template <class I>
struct Lattice {
    struct Digits {
        I outer, d, h, w;
    };
    using U = std::make_unsigned_t<I>;

    I size[3], step[3], start[3];
    I outer_stride;
    Digits hop;  // the digits of a tile's depth

    FUSEDNN_HOST_DEVICE Digits digits(i64 i) const {
        U left = U(i);
        Digits at;
        at.w = I(left % U(size[2]));
        left /= U(size[2]);
        at.h = I(left % U(size[1]));
        left /= U(size[1]);
        at.d = I(left % U(size[0]));
        at.outer = I(left / U(size[0]));
        return at;
    }
    // One tile further: an addition with carries, no division.
    FUSEDNN_DEVICE void advance(Digits& at) const {
        at.w += hop.w;
        const bool carry_w = at.w >= size[2];
        if (carry_w) at.w -= size[2];
        at.h += hop.h + I(carry_w);
        const bool carry_h = at.h >= size[1];
        if (carry_h) at.h -= size[1];
        at.d += hop.d + I(carry_h);
        const bool carry_d = at.d >= size[0];
        if (carry_d) at.d -= size[0];
        at.outer += hop.outer + I(carry_d);
    }
    FUSEDNN_DEVICE Point<I> point(const Digits& at, const I (&image)[3]) const {
        Point<I> point;
        point.d = at.d * step[0] + start[0];
        point.h = at.h * step[1] + start[1];
        point.w = at.w * step[2] + start[2];
        const U plane = (U(point.d) * U(image[1]) + U(point.h)) * U(image[2]) + U(point.w);
        point.offset = I(U(at.outer) * U(outer_stride) + plane);
        return point;
    }
    FUSEDNN_HOST_DEVICE bool empty() const { return size[0] <= 0 || size[1] <= 0 || size[2] <= 0; }
};

// Element (i, p): where the points of row i and depth p add up to, 0 if that is outside the image.
template <class T, class I, bool kAlong_>
struct Gather {
    using Value = T;
    using Row = Point<I>;
    using State = typename Lattice<I>::Digits;
    static constexpr bool kAlong = kAlong_, kHasRows = true;

    const T* data;
    i64 batch;
    I image[3];
    Lattice<I> rows, depths;

    FUSEDNN_HOST_DEVICE void prepare(int depth) {
        if (!depths.empty()) depths.hop = depths.digits(depth);
    }
    FUSEDNN_DEVICE i64 batch_offset(i64 z) const { return z * batch; }
    FUSEDNN_DEVICE Row row_of(i64 i) const { return rows.point(rows.digits(i), image); }
    FUSEDNN_DEVICE State begin(i64 depth) const { return depths.digits(depth); }

    FUSEDNN_DEVICE bool inside(const Row& row, const Point<I>& depth) const {
        return row.d + depth.d >= 0 && row.d + depth.d < image[0] && row.h + depth.h >= 0 &&
               row.h + depth.h < image[1] && row.w + depth.w >= 0 && row.w + depth.w < image[2];
    }

    struct Find {
        const Gather& source;
        const T* base;
        const Row* contexts;
        const Point<I>& depth;
        int rows;  // that exist
        FUSEDNN_DEVICE const T* operator()(int r) const {
            if (r >= rows) return nullptr;
            const Row row = contexts[r];
            return source.inside(row, depth) ? base + row.offset_with(depth.offset) : nullptr;
        }
    };

    template <int kThreads, class Tile>
    FUSEDNN_DEVICE void copy(Tile& tile, const T* base, const Row* contexts, State& state,
                             const TileEdges& edges) const {
        using Mine = Lane<Tile, kThreads, kAlong>;
        const Mine mine;
        const Point<I> depth = depths.point(state, image);
        depths.advance(state);
        const bool real = edges.depth0 + mine.depth < edges.depth_end;
        if constexpr (sizeof(T) == 2) {
            const Find find{*this, base, contexts, depth, real ? edges.rows : 0};
            copy_halves(tile, mine, find);
        } else {
#pragma unroll 2
            for (int r = mine.row; r < Tile::kRows; r += Mine::kStep) {
                bool take = real && r < edges.rows;
                const T* from = base;
                if (take) {
                    const Row row = contexts[r];
                    take = inside(row, depth);
                    if (take) from += row.offset_with(depth.offset);
                }
                copy_async<sizeof(T)>(&tile.at(r, mine.depth), from, take ? int(sizeof(T)) : 0);
            }
        }
    }
};

}  // namespace fusednn::cuda
