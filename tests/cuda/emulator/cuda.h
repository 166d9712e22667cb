// What a CUDA source sees of CUDA when a host compiler compiles it for the emulator: the language's
// own names. Included by csrc/cuda/gpu.h only.
#pragma once
#include "emulator/builtins.h"
#include "emulator/emulator.h"
#include "emulator/runtime.h"
#include "emulator/types.h"
