#include "ops/activation.h"

#include <cstring>
#include <string>

#include "core/errors.h"

namespace fusednn::ops {

namespace {

struct Named {
    const char* name;
    Unary function;
};

constexpr Named functions[] = {
    {"sigmoid", Unary::sigmoid},
    {"tanh", Unary::tanh},
    {"gelu", Unary::gelu},
    {"gelu_tanh", Unary::gelu_tanh},
    {"silu", Unary::silu},
    {"mish", Unary::mish},
    {"leaky_relu", Unary::leaky_relu},
    {"elu", Unary::elu},
    {"softplus", Unary::softplus},
    {"logsigmoid", Unary::logsigmoid},
    {"hardsigmoid", Unary::hardsigmoid},
    {"hardswish", Unary::hardswish},
    {"hardtanh", Unary::hardtanh},
};

}  // namespace

Unary unary_named(const char* name) {
    for (const Named& one : functions) {
        if (!std::strcmp(one.name, name)) return one.function;
    }
    throw Error(std::string("unary: '") + name + "' is no function");
}

PreluView prelu_view(const Shape& input, const Shape& weight) {
    if (checked_size("prelu", weight) == 1) return {1, 1, checked_size("prelu", input)};
    const i64 channels = input.size() > 1 ? input[1] : 1;
    if (weight != Shape{channels}) {
        throw Error("prelu: weight has shape " + text(weight) + ", expected (1,) or (" +
                    std::to_string(channels) + ",) for input of shape " + text(input));
    }
    PreluView view{input.size() > 1 ? input[0] : checked_size("prelu", input), channels, 1};
    for (std::size_t i = 2; i < input.size(); ++i) view.inner *= input[i];
    return view;
}

}  // namespace fusednn::ops
