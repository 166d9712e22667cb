// The blocked product that gemm and conv share: C (m x n) = A (m x k) B (k x n).
//
//   for each block of k:                      (sequential: C accumulates in a fixed order)
//     pack A's block into panels of rows      (in parallel over panels; skipped for A read in
//     place) for each task = rows x columns of C:    (in parallel)
//       pack B's block into panels of columns
//       for each panel of rows, for each panel of columns: one register tile
//
// How rows and columns are cut into tasks never shows in the result: every element of C is the same
// chain of multiply-adds over k, cut only where blocks of k meet, and those depend on shape alone.
//
// Who uses the engine brings two small objects:
//   pack_b(k0, kc, col0, cols, dst, slot)   writes the panel dst[p * kTileCols + j] for kc rows of
//   B;
//                                     it may run over by less than kTileCols elements
//   emit(tile_fn, kc, a, a_row, b, row0, rows, col0, cols, first, last)   runs one tile into C
#pragma once
#include "cpu/gemm/pack.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Bytes of packed B that one task keeps: most of a 512 KB L2, less than half of a 1 MB one.
constexpr i64 kPackedBlockBytes = 384 * 1024;
// Rows of B in a block of k. A panel of A is then 28 KB, so it and the streaming B share L1 and L2.
constexpr i64 kBlockDepth = 512;
// Tasks that a job is cut into: 8 for each of 2 threads keep them busy to the end.
constexpr i64 kTasksPerThread = 8;

struct Blocking {
    i64 depth;                    // rows of B per block of k
    i64 col_panels, task_panels;  // panels of columns: in all, per task
    i64 col_tasks, row_tasks;
    int slots;
};

template <class T>
FUSEDNN_INLINE Blocking choose_blocking(i64 m, i64 n, i64 k) {
    Blocking blocking;
    blocking.depth = max_of(ceil_div(k, max_of(ceil_div(k, kBlockDepth), i64(1))), i64(1));
    blocking.col_panels = ceil_div(n, kTileCols<T>);
    const i64 row_panels = ceil_div(m, kTileRows);
    blocking.slots =
        parallel_slots(blocking.col_panels * row_panels, 2 * m * n * max_of(k, i64(1)));
    const i64 fit = kPackedBlockBytes / (blocking.depth * kTileCols<T> * i64(sizeof(T)));
    blocking.task_panels = max_of(min_of(fit, blocking.col_panels), i64(1));
    const i64 wanted = blocking.slots > 1 ? blocking.slots * kTasksPerThread : 1;
    if (ceil_div(blocking.col_panels, blocking.task_panels) < wanted) {
        blocking.task_panels = max_of(blocking.col_panels / wanted, i64(1));
        if (wanted == 1) blocking.task_panels = max_of(min_of(fit, blocking.col_panels), i64(1));
    }
    blocking.col_tasks = ceil_div(blocking.col_panels, blocking.task_panels);
    // Rows are cut only where columns alone do not give enough tasks, and not below 4 panels: each
    // row task packs the same block of B again.
    const i64 row_cut = ceil_div(wanted, blocking.col_tasks);
    blocking.row_tasks = max_of(min_of(row_cut, row_panels / 4), i64(1));
    return blocking;
}

// A as the engine reads it: element (i, p) at data[i * row + p * col]. Other sources of A (weights
// in another order, say) bring the same members.
template <class T>
struct MatrixA {
    const T* data;
    i64 row, col;

    // Whether rows can be read in place: then they start at rows(i, p), row_stride() apart.
    FUSEDNN_INLINE bool in_rows() const { return col == 1; }
    FUSEDNN_INLINE i64 row_stride() const { return row; }
    FUSEDNN_INLINE const T* rows(i64 i, i64 p) const { return data + i * row + p * col; }
    FUSEDNN_INLINE void pack(i64 row0, int height, i64 k0, i64 kc, T* dst, bool exact) const {
        pack_rows(kc, height, rows(row0, k0), row, col, dst, exact);
    }
};

// Packs A's block [k0, k0 + kc): the panel that starts at row i goes to packed[i * kc].
template <class A, class T>
FUSEDNN_INLINE void pack_a_block(const A& a, const RowPanels& panels, i64 k0, i64 kc, T* packed,
                                 int slots) {
    // A panel's last stores run into the next one, so neighbours are packed in order by one thread,
    // and the last panel of a task is finished exactly.
    const i64 group = slots > 1 ? max_of(panels.count / (slots * 4), i64(1)) : panels.count;
    parallel(ceil_div(panels.count, group), slots, [&](i64 task, int) {
        const i64 end = min_of((task + 1) * group, panels.count);
        for (i64 panel = task * group; panel < end; ++panel) {
            const bool exact = panel + 1 == end && end < panels.count;
            const i64 row0 = panels.start(panel);
            a.pack(row0, panels.height(panel), k0, kc, packed + row0 * kc, exact);
        }
    });
}

// Packing A costs one pass over it; so few panels of columns would not win that back.
constexpr i64 kPanelsInRows = 4;

// in_place(k0, col0, cols): where a panel of B lies in memory, its rows b_row apart, or null.
template <class T, class A, class PackB, class Emit, class InPlace>
FUSEDNN_INLINE void blocked_product(const Blocking& cut, i64 m, i64 n, i64 k, const A& a,
                                    const PackB& pack_b, const Emit& emit, i64 b_row,
                                    const InPlace& in_place) {
    const RowPanels panels(m);
    const bool packed_a = !a.in_rows() || cut.col_panels > kPanelsInRows;
    Workspace<T> a_work(packed_a ? m * cut.depth + kPackSlack<T> : 0);
    Workspace<T> b_work(cut.task_panels * cut.depth * kTileCols<T> + kTileCols<T>, cut.slots);

    i64 k0 = 0;
    do {
        const i64 kc = min_of(cut.depth, k - k0);
        const bool first = k0 == 0, last = k0 + kc >= k;
        if (packed_a) pack_a_block(a, panels, k0, kc, a_work.get(), cut.slots);
        parallel(cut.col_tasks * cut.row_tasks, cut.slots, [&](i64 task, int slot) {
            FlushDenormals flush;
            T* b_block = b_work.slot(slot);
            const i64 col_task = task / cut.row_tasks, row_task = task % cut.row_tasks;
            const i64 panel_begin = col_task * cut.task_panels;
            const i64 panel_end = min_of(panel_begin + cut.task_panels, cut.col_panels);
            for (i64 panel = panel_begin; panel < panel_end; ++panel) {
                const i64 col0 = panel * kTileCols<T>;
                const i64 cols = min_of(n - col0, i64(kTileCols<T>));
                if (in_place(k0, col0, cols)) continue;
                pack_b(k0, kc, col0, cols, b_block + (panel - panel_begin) * kc * kTileCols<T>,
                       slot);
            }
            const i64 row_begin = panels.count * row_task / cut.row_tasks;
            const i64 row_end = panels.count * (row_task + 1) / cut.row_tasks;
            for (i64 row_panel = row_begin; row_panel < row_end; ++row_panel) {
                const i64 row0 = panels.start(row_panel);
                const int rows = panels.height(row_panel);
                const T* a_panel = packed_a ? a_work.get() + row0 * kc : a.rows(row0, k0);
                for (i64 panel = panel_begin; panel < panel_end; ++panel) {
                    const i64 col0 = panel * kTileCols<T>;
                    const i64 cols = min_of(n - col0, i64(kTileCols<T>));
                    const i64 narrow = packed_a ? narrow_columns<T>(cols, panels.base, kc) : 0;
                    const i64 wide = cols - narrow;
                    const T* there = in_place(k0, col0, cols);
                    const T* b_panel =
                        there ? there : b_block + (panel - panel_begin) * kc * kTileCols<T>;
                    const i64 b_step = there ? b_row : kTileCols<T>;
                    if (wide > 0) {
                        emit(tile_function<T>(rows, wide, packed_a), kc, a_panel, a.row_stride(),
                             b_panel, b_step, row0, rows, col0, wide, first, last);
                    }
                    if (narrow > 0) {
                        emit(narrow_tile_function<T>(narrow), kc, a_panel, i64(rows),
                             b_panel + wide, b_step, row0, rows, col0 + wide, narrow, first, last);
                    }
                }
            }
        });
        k0 += kc;
    } while (k0 < k);
}

template <class T, class A, class PackB, class Emit>
FUSEDNN_INLINE void blocked_product(const Blocking& cut, i64 m, i64 n, i64 k, const A& a,
                                    const PackB& pack_b, const Emit& emit) {
    blocked_product<T>(cut, m, n, k, a, pack_b, emit, i64(0),
                       [](i64, i64, i64) { return static_cast<const T*>(nullptr); });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
