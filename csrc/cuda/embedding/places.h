// Which places name which row of a table, on the GPU; no CUDA header is needed to ask for it.
//
// 1. keys = ids, those of the row `skipped` beyond all others   2. the caller sorts: order, stable,
// so that keys[order] rises   3. starts (rows + 1) into order, and 1 / uses of each row
#pragma once
#include "core/types.h"

namespace fusednn::cuda {

void embedding_keys(i64 count, i64 rows, i64 skipped, const i64* ids, i64* keys);
template <class T>
void embedding_starts(i64 rows, i64 count, const i64* keys, const i64* order, i64* starts,
                      T* scale);  // scale: rows values or null

}  // namespace fusednn::cuda
