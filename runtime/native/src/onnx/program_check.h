// Checks of ONNX models before ONNX Runtime sees one: a bundle may come from a stranger, and a loop that does not end, or a
// file elsewhere that a program takes for its constants, is valid ONNX.
//
// The model is read for this without a library, in a way that finds more than any of them: a field that comes twice counts
// twice, whichever of the two a reader takes.
#ifndef EDGEKIT_ONNX_PROGRAM_CHECK_H
#define EDGEKIT_ONNX_PROGRAM_CHECK_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace edgekit {

// Programs hold no weights: the writer's have some 10 kB.
constexpr std::size_t kMostProgramBytes = std::size_t{4} << 20;

// Throws Error (EK_MALFORMED_FILE) unless `model` is an ONNX model of the operators alone that exports of a format write
// ("onnx", "onnx-gpu", "qnn"), without parts that are graphs of their own and without data outside of it, but for that of
// "qnn" in the file "weights.bin" beside it. The message follows the model's name.
void check_onnx(std::string_view model, const std::string &format);

// The same for a model that a chip's compiler has written, which may name these files beside it, and no others.
void check_context(std::string_view model, const std::vector<std::string> &files);

}  // namespace edgekit

#endif  // EDGEKIT_ONNX_PROGRAM_CHECK_H
