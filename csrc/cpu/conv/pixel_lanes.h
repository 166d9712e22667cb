// Convolutions with few destination channels: positions in the lanes, source read in place.
//
// A matrix product gains by using each source element for many destination channels. A group with
// at most kPixelRows of them (depthwise convolution; the input gradient of a network's first layer)
// has the reuse in the kernel instead: a tile holds a block of destination rows of all its
// channels, and one loaded vector of source pixels serves every row of the block that it reaches,
// for every channel. Nothing is copied or packed but the weights; what lies outside the source is
// masked, and rows of padding are left out.
#pragma once
#include "cpu/conv/problem.h"

namespace fusednn {
namespace FUSEDNN_ISA {

constexpr i64 kPixelRows = 4;

// How the groups of a grouped convolution lie: elements from one to the next.
struct ConvGroups {
    i64 count, src, dst, weights;
};

// Neighbouring positions must read neighbouring elements.
template <class T>
FUSEDNN_INLINE bool pixel_lanes_apply(const ConvProblem<T>& p) {
    return p.step[1] == 1 && p.step[2] == 1;
}

// Runs `residues` problems that differ in the residue of their positions' columns alone (grid[2],
// offset[2], taps[2], dst_start[2] = 0, 1 ...), each as it is for group 0. bias: groups * rows
// values or null.
template <class T>
void conv_pixel_lanes(const ConvProblem<T>* problems, const ConvWeights<T>* weights, i64 residues,
                      const ConvGroups& groups, const T* bias);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
