#include "bindings/ints.h"

#include <string>

#include "core/errors.h"

namespace fusednn::bindings {

namespace py = pybind11;

namespace {

[[noreturn]] void refuse(py::handle object, const char* op, const char* argument,
                         const char* expected) {
    throw TypeMismatch(std::string(op) + ": " + argument + " must be " + expected + ", got " +
                       Py_TYPE(object.ptr())->tp_name);
}

}  // namespace

i64 to_int(py::handle object, const char* op, const char* argument) {
    PyObject* index = PyNumber_Index(object.ptr());
    if (!index) {
        PyErr_Clear();
        refuse(object, op, argument, "an int");
    }
    int overflow = 0;
    const i64 value = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow != 0) {
        throw Error(std::string(op) + ": " + argument + " = " +
                    py::str(object).cast<std::string>() + " does not fit into 64 bits");
    }
    return value;
}

std::vector<i64> to_ints(py::handle object, const char* op, const char* argument) {
    if (!PySequence_Check(object.ptr())) {
        if (!PyIndex_Check(object.ptr())) {
            refuse(object, op, argument, "an int or a sequence of ints");
        }
        return {to_int(object, op, argument)};
    }
    if (PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr())) {
        refuse(object, op, argument, "an int or a sequence of ints");
    }
    std::vector<i64> values;
    for (py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
        values.push_back(to_int(item, op, argument));
    }
    return values;
}

ops::PaddingArgs to_padding(py::handle object, const char* op) {
    constexpr const char* kExpected =
        "a name, an int, or a sequence of ints and of pairs (front, back)";
    ops::PaddingArgs padding;
    if (PyUnicode_Check(object.ptr())) {
        padding.name = object.cast<std::string>();
        return padding;
    }
    if (!PySequence_Check(object.ptr()) || PyBytes_Check(object.ptr())) {
        if (!PyIndex_Check(object.ptr())) refuse(object, op, "padding", kExpected);
        padding.front = {to_int(object, op, "padding")};
        return padding;
    }
    bool pairs = false;
    for (py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
        if (PyIndex_Check(item.ptr())) {
            padding.front.push_back(to_int(item, op, "padding"));
            padding.back.push_back(padding.front.back());
            continue;
        }
        if (!PySequence_Check(item.ptr())) refuse(item, op, "padding", kExpected);
        const std::vector<i64> pair = to_ints(item, op, "padding");
        if (pair.size() != 2) {
            throw Error(std::string(op) + ": padding has " + std::to_string(pair.size()) +
                        " values " + ops::text(pair) + " for one axis, expected a pair");
        }
        padding.front.push_back(pair[0]);
        padding.back.push_back(pair[1]);
        pairs = true;
    }
    if (!pairs) padding.back.clear();
    return padding;
}

ops::ConvWindowArgs to_conv_window(py::handle stride, py::handle padding, py::handle dilation,
                                   const char* op) {
    return {to_ints(stride, op, "stride"), to_ints(dilation, op, "dilation"),
            to_padding(padding, op)};
}

ops::Shape to_shape(py::handle tuple, const char* op, const char* argument) {
    return to_ints(tuple, op, argument);
}

}  // namespace fusednn::bindings
