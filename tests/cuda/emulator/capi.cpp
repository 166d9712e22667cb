// What the Python tests call through ctypes: memory for the stand-in of CuPy, and the emulator's
// options and reports.
#include "emulator/state.h"

extern "C" {

#define EMULATOR_EXPORT __attribute__((visibility("default")))

EMULATOR_EXPORT void* emulator_malloc(std::size_t bytes) {
    void* pointer = nullptr;
    return cudaMalloc(&pointer, bytes) == cudaSuccess ? pointer : nullptr;
}
EMULATOR_EXPORT int emulator_free(void* pointer) {
    return cudaFree(pointer);
}
EMULATOR_EXPORT int emulator_to_device(void* to, const void* from, std::size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice);
}
EMULATOR_EXPORT int emulator_to_host(void* to, const void* from, std::size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost);
}
EMULATOR_EXPORT int emulator_get_device() {
    return emulator::machine.device;
}
EMULATOR_EXPORT int emulator_set_device(int device) {
    return cudaSetDevice(device);
}
// Where the memory of device 1 begins.
EMULATOR_EXPORT std::uint64_t emulator_second_heap() {
    emulator::reserve_region();
    return std::uint64_t(emulator::machine.region) + emulator::kSharedBytes + emulator::kHeapBytes;
}

EMULATOR_EXPORT int emulator_is_strict() {
    return emulator::kStrict;
}
EMULATOR_EXPORT void emulator_set_seed(unsigned seed) {
    emulator::options().seed = seed;
}
EMULATOR_EXPORT void emulator_set_resident(int blocks) {
    emulator::options().resident = blocks;
}
EMULATOR_EXPORT void emulator_set_profile(int on) {
    emulator::options().profile = on != 0;
}
EMULATOR_EXPORT const char* emulator_profile() {
    static std::string text;
    text = emulator::profile();
    return text.c_str();
}
EMULATOR_EXPORT const char* emulator_last_report() {
    return emulator::last_report().c_str();
}
// The numbers of struct Counts in their order; counting starts anew.
EMULATOR_EXPORT void emulator_take_counts(std::uint64_t* numbers) {
    const emulator::Counts counts = emulator::counts();
    std::memcpy(numbers, &counts, sizeof counts);
    emulator::counts() = {};
}

}  // extern "C"
