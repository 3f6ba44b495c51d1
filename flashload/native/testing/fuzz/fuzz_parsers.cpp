// Fuzz target of everything that reads a file from elsewhere: JSON, the flash file's header, the manifest, lists of
// bundles, ONNX models. Whatever the bytes are, a parser returns what its callers rely on or throws Error with one printable line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bundle_set.h"
#include "error.h"
#include "flash_layout.h"
#include "fuzz_target.h"
#include "json.h"
#include "manifest_reader.h"
#include "onnx/program_check.h"

namespace {

using edgekit::Json;

// A graph with a node "Abs" and a constant in weights.bin.
const std::string kOnnxModel("\x3a\x24\x0a\x05\x22\x03" "Abs" "\x2a\x1b\x6a\x17\x0a\x08" "location" "\x12\x0b" "weights.bin" "\x70\x01", 38);

template <typename Function>
void guarded(Function function) {
  try {
    function();
  } catch (const edgekit::Error &error) {
    edgekit_testing::require_one_line(error.what());
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

void check_packed(const edgekit::FlashLayout &layout, std::uint64_t data_start) {
  std::uint64_t covered = 0;
  for (const edgekit::Run &run : layout.runs) {
    EK_REQUIRE(&layout.run(run.name) == &run && run.length % edgekit::kRunAlignment == 0);
    std::uint64_t end = 0;
    for (const edgekit::FlashSegment &part : run.parts()) {
      EK_REQUIRE(part.bytes > 0 && part.place >= end && part.place + part.bytes <= run.length);
      EK_REQUIRE(part.offset >= data_start && part.offset + part.bytes <= layout.size);
      EK_REQUIRE(part.offset % edgekit::kRunAlignment == part.place % edgekit::kRunAlignment);
      end = part.place + part.bytes;
      covered += part.bytes;
    }
    for (const edgekit::Tensor &tensor : run.tensors) {
      EK_REQUIRE(tensor.bytes > 0 && tensor.offset + tensor.bytes <= end && run.find(tensor.name) == &tensor);
    }
  }
  EK_REQUIRE(covered == layout.size - data_start);
}

void check_layout(const edgekit::FlashLayout &layout, std::uint64_t data_start, std::uint64_t file_size) {
  EK_REQUIRE(layout.size == file_size && !layout.runs.empty() && layout.index.size() == layout.runs.size());
  std::uint64_t position = data_start;
  if (layout.packed) return check_packed(layout, data_start);
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

// `text` without its seal, which is made for it.
void parse_manifest(std::string_view text) {
  std::string sealed(edgekit::kSealStart);
  sealed.append(edgekit::kSealDigits, '0').append(text);
  sealed.replace(edgekit::kSealStart.size(), edgekit::kSealDigits, edgekit::manifest_seal(sealed));
  guarded([&] {
    const edgekit::BundleManifest manifest = edgekit::parse_manifest(sealed, "m");
    EK_REQUIRE(("/" + manifest.weights.name + "/").find("/../") == std::string::npos);
    EK_REQUIRE(!manifest.weights.name.empty() && manifest.weights.name.front() != '/');
    EK_REQUIRE(manifest.root.at("layers").kind() == Json::Kind::array);
  });
}

const char *const kHeader =
    R"({"__metadata__": {"edgekit.format": "1", "edgekit.plan": "", "edgekit.runs": )"
    R"("[[\"r\",16384,16384,\"00000000000000ff\"],[\"layer.0\",32768,16384,\"0123456789abcdef\"]]"}, )"
    R"("r.a": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}, )"
    R"("__pad__.0": {"dtype": "U8", "shape": [32], "data_offsets": [32, 64]}, )"
    R"("b": {"dtype": "BF16", "shape": [8160], "data_offsets": [64, 16384]}, )"
    R"("layer.0.q": {"dtype": "U8", "shape": [2, 64, 128], "data_offsets": [16384, 32768]}})";

const char *const kManifest =
    R"(", "schema_version": 2, "model": {"family": "llada"}, "programs": {}, "layers": [{"run": "layer.0"}], )"
    R"("sampler": {"steps": 64}, "quantization": {"bits": 4.0}, )"
    R"("weights": {"file": "weights.safetensors", "size": 32768, "sha256": )"
    R"("00000000000000000000000000000000ffffffffffffffffffffffffffffffff", "header_size": 16384, )"
    R"("header_xxh3": "00000000ffffffff"}, "files": {"a/b.json": {"size": 2, "sha256": )"
    R"("00000000000000000000000000000000ffffffffffffffffffffffffffffffff", "xxh3": "0123456789abcdef"}}, )"
    R"("provenance": {}})";

void parse_bundle_set(std::string_view text) {
  guarded([&] {
    const edgekit::BundleSet set = edgekit::parse_bundle_set(text, "bundles.json");
    EK_REQUIRE(!set.members.empty());
    for (const edgekit::BundleSetMember &member : set.members) EK_REQUIRE(edgekit::is_inside(member.path));
    for (const edgekit::BundleFile &file : set.files) EK_REQUIRE(set.find(file.name) != nullptr);
    EK_REQUIRE(&edgekit::choose_member(set, {}, "bundles.json") == &set.members.front());
    edgekit::BundleRunner phone;
    phone.system = "ios";
    phone.version = "26.4";
    phone.formats = {"native", "coreml"};
    try {
      const edgekit::BundleSetMember &chosen = edgekit::choose_member(set, phone, "bundles.json");
      EK_REQUIRE(chosen.format == "native" || chosen.format == "coreml");
    } catch (const edgekit::Error &error) {
      EK_REQUIRE(error.status() == EK_UNSUPPORTED_BUNDLE);
    }
  });
}

const char *const kBundleSet = R"({"schema_version": 4, "bundles": [{"path": "a/b", "format": "coreml", "minimum_os":
    {"ios": "26.4", "macos": "26"}, "chips": ["a19"]}, {"path": "c", "format": "native", "minimum_os": {"ios": "17.0"},
    "chips": []}],
    "files": {"c/edgekit.json": {"size": 5, "sha256":
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "xxh3": "0123456789abcdef"}}})";

}  // namespace

// The first byte chooses: 0 JSON, 1 a header's text, 2 a whole file, 3 a manifest, 4 a bundles.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char *>(data) + 1, size - 1);
  switch (data[0] % 6) {
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
    case 3:
      parse_manifest(text);
      break;
    case 4:
      guarded([&] { edgekit::check_onnx(text, "qnn"); });
      guarded([&] { edgekit::check_context(text, {"a.bin"}); });
      break;
    default:
      parse_bundle_set(text);
  }
  return 0;
}

std::vector<std::string> edgekit_testing::fuzz_seeds() {
  std::vector<std::string> seeds = {
      std::string(1, '\0') + R"({"a": [1, -2.5e-3, true, false, null, "x\u00e9\ud83d\ude00\n\\"], "b": {"": {}}})",
      std::string(1, '\0') + "[[[[[[[[9223372036854775807, -9223372036854775808, 1e308]]]]]]]]",
      std::string(1, '\1') + kHeader,
      std::string(1, '\3') + kManifest,
      std::string(1, '\5') + kBundleSet,
      std::string(1, '\4') + kOnnxModel,
  };
  std::string file = kHeader;
  file.resize(16384 - 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[static_cast<std::size_t>(i)] = static_cast<char>(file.size() >> (8 * i));
  seeds.push_back(std::string(1, '\2') + length + file + std::string(32768, 'x'));
  return seeds;
}
