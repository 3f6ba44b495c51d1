// Fuzz target of everything that reads a file from elsewhere: JSON, the flash file's header, the manifest. Whatever the
// bytes are, a parser returns what its callers rely on or throws Error with one printable line.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "error.h"
#include "flash_layout.h"
#include "json.h"
#include "manifest_reader.h"

namespace {

using edgekit::Error;
using edgekit::Json;

#define EK_REQUIRE(condition)                                                    \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)

template <typename Function>
void guarded(Function function) {
  try {
    function();
  } catch (const Error &error) {
    const std::string message = error.what();
    for (const char letter : message) EK_REQUIRE(static_cast<unsigned char>(letter) >= 0x20);
    EK_REQUIRE(error.status() == EK_MALFORMED_FILE || error.status() == EK_TRUNCATED_FILE ||
               error.status() == EK_UNSUPPORTED_VERSION);
  }
}

// Every accessor of every value either answers or throws Error.
std::size_t visit(const Json &value) {
  std::size_t seen = 1;
  guarded([&] { seen += value.boolean(); });
  guarded([&] { seen += value.integer() == value.integer(); });
  guarded([&] { EK_REQUIRE(value.number() - value.number() == 0); });
  guarded([&] { seen += value.string().size(); });
  guarded([&] {
    for (const Json &item : value.array()) seen += visit(item);
  });
  guarded([&] {
    for (const auto &[key, item] : value.object()) {
      EK_REQUIRE(value.object().size() > 200 || value.find(key) == &item);
      seen += visit(item);
    }
  });
  return seen;
}

void check_layout(const edgekit::FlashLayout &layout, std::uint64_t data_start, std::uint64_t file_size) {
  EK_REQUIRE(layout.size == file_size && !layout.runs.empty() && layout.index.size() == layout.runs.size());
  std::uint64_t position = data_start;
  for (const edgekit::Run &run : layout.runs) {
    EK_REQUIRE(run.offset == position && run.offset % edgekit::kRunAlignment == 0);
    EK_REQUIRE(run.length > 0 && run.length % edgekit::kRunAlignment == 0);
    EK_REQUIRE(&layout.run(run.name) == &run);
    std::uint64_t end = 0;
    for (const edgekit::Tensor &tensor : run.tensors) {
      EK_REQUIRE(tensor.offset >= end && tensor.offset % edgekit::kTensorAlignment == 0 && tensor.bytes > 0);
      end = tensor.offset + tensor.bytes;
      EK_REQUIRE(end <= run.length && run.find(tensor.name) == &tensor);
      std::uint64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
      EK_REQUIRE(elements > 0 && tensor.bytes % elements == 0 && tensor.bytes / elements <= 8);
    }
    position = run.offset + run.length;
  }
  EK_REQUIRE(position == file_size);
}

void parse_header(std::string_view header, std::uint64_t file_size) {
  guarded([&] { check_layout(edgekit::parse_flash_header(header, file_size, "f"), 8 + header.size(), file_size); });
}

void parse_manifest(std::string_view text) {
  guarded([&] {
    const edgekit::BundleManifest manifest = edgekit::parse_manifest(text, "m");
    EK_REQUIRE(("/" + manifest.weights_file + "/").find("/../") == std::string::npos);
    EK_REQUIRE(!manifest.weights_file.empty() && manifest.weights_file.front() != '/');
    EK_REQUIRE(manifest.root.at("layers").kind() == Json::Kind::array);
  });
}

}  // namespace

// The first byte chooses: 0 JSON, 1 a header's text, 2 a whole file, 3 a manifest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char *>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      guarded([&] { visit(Json::parse(text, "text")); });
      break;
    case 1: {  // padded as the writer pads it, in a file that ends after one, two or three runs of 16 KiB
      std::string header(text);
      const std::uint64_t unit = edgekit::kRunAlignment;
      header.resize((header.size() + 8 + unit - 1) / unit * unit - 8, ' ');
      for (std::uint64_t runs = 1; runs <= 3; ++runs) parse_header(header, 8 + header.size() + runs * unit);
      break;
    }
    case 2:
      guarded([&] {
        const std::uint64_t length = edgekit::flash_header_length(text.substr(0, 64), text.size(), "f");
        EK_REQUIRE(8 + length <= text.size());
        parse_header(text.substr(8, static_cast<std::size_t>(length)), text.size());
      });
      break;
    default:
      parse_manifest(text);
  }
  return 0;
}
