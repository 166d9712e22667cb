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

ops::Shape to_shape(py::handle tuple, const char* op, const char* argument) {
    return to_ints(tuple, op, argument);
}

}  // namespace fusednn::bindings
