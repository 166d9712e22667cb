// Convolutions with few destination channels: positions in the lanes, source read in place.
//
// A matrix product gains by using each source element for many destination channels. A group with
// at most kFewChannels of them (depthwise convolution; the input gradient of a network's first
// layer) has the reuse in the kernel instead: a tile holds a block of destination rows of all its
// channels, and one loaded vector of source pixels serves every row of the block that it reaches,
// for every channel. Nothing is copied or packed but the weights; what lies outside the source is
// masked, and rows of padding are left out.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// How the groups of a grouped convolution lie: elements from one to the next.
struct ConvGroups {
    i64 count, src, dst, weights;
};

// Neighbouring positions must read neighbouring elements.
template <class T>
FUSEDNN_INLINE bool pixel_lanes_apply(const ConvProblem<T>& p) {
    return p.step[1] == 1 && p.step[2] == 1;
}

// Tap rows that one tile serves, whose code is unrolled over them; fewer where it has several
// channels: three at a time are as fast as five, and less code.
constexpr int kMaxTapRows = 5;
constexpr int max_tap_rows(i64 channels) {
    return channels == 1 ? kMaxTapRows : 3;
}

// Tap rows whose offsets are neighbours, lowest first.
struct TapRows {
    i64 lowest;  // the first one's offset
    i64 first;   // its place among all in ascending order
    i64 count;
};

// The tap rows of a problem as few runs of neighbours; one empty run where there are none.
template <class T>
class TapRowRuns {
  public:
    FUSEDNN_INLINE TapRowRuns(const ConvProblem<T>& p, i64 longest)
        : taps_(p.taps[1]),
          descending_(taps_ > 1 && p.offset[1][1] < p.offset[1][0]),
          runs_(max_of(taps_, i64(1))) {
        for (i64 k = 0; k < taps_; ++k) {
            const i64 offset = p.offset[1][tap(k)];
            TapRows* last = count_ ? runs_.get() + count_ - 1 : nullptr;
            if (last && last->lowest + last->count == offset && last->count < longest) {
                ++last->count;
            } else {
                runs_.get()[count_++] = {offset, k, 1};
            }
        }
        if (count_ == 0) runs_.get()[count_++] = {0, 0, 0};
    }
    // The problem's index of the k-th tap row in ascending order.
    FUSEDNN_INLINE i64 tap(i64 k) const { return descending_ ? taps_ - 1 - k : k; }
    FUSEDNN_INLINE i64 size() const { return count_; }
    FUSEDNN_INLINE const TapRows& operator[](i64 run) const { return runs_.get()[run]; }

  private:
    i64 taps_;
    bool descending_;
    Workspace<TapRows> runs_;
    i64 count_ = 0;
};

// Runs `residues` problems that differ in the residue of their positions' columns alone (grid[2],
// offset[2], taps[2], dst_start[2] = 0, 1 ...), each as it is for group 0. bias: groups * rows
// values or null.
template <class T>
void conv_pixel_lanes(const ConvProblem<T>* problems, const ConvWeights<T>* weights, i64 residues,
                      const ConvGroups& groups, const T* bias);

// The weight gradient of the same convolutions, for few source channels per group: one destination
// and one source channel at a time, the sums of up to 5 x 3 taps in registers.
template <class T>
void pixel_lanes_backward_weight(const ConvParams&, const T* x, const T* dy, T* dw);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
