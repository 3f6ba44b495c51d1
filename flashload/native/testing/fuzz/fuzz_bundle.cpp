// Fuzz target of a session's way through a manifest: model, op lists, layout of weights, plans, sampler options, and
// then the passes themselves. Inputs are manifests of the bundle in the folder that EDGEKIT_FUZZ_BUNDLE names, as
// `edgekit export --format native` writes it, without their seal, which is made for each; its own is the seed. Whatever a manifest says, the functions of edgekit.h
// compute or refuse.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "edgekit.h"
#include "fuzz_target.h"
#include "manifest_reader.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kCanvas = 16, kPrompt = 7, kPositions = 64, kIds = 4;
constexpr std::uint64_t kMemory = std::uint64_t{8} << 30;  // so that no pass is longer than these lengths

fs::path given() {
  const char *folder = std::getenv("EDGEKIT_FUZZ_BUNDLE");
  if (folder == nullptr || !fs::exists(fs::path(folder) / "weights.safetensors")) {
    std::fputs("EDGEKIT_FUZZ_BUNDLE must name the folder of a bundle in the native format\n", stderr);
    std::exit(2);
  }
  return folder;
}

// A folder with the bundle's weights, for a manifest to be put beside them; removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "edgekit_fuzz_XXXXXX").string();
    EK_REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    fs::copy(given() / "weights.safetensors", folder_ / "weights.safetensors");
  }
  ~Scratch() { fs::remove_all(folder_); }

  std::string with_manifest(const std::uint8_t *data, std::size_t size) const {
    std::string text(edgekit::kSealStart);
    text.append(edgekit::kSealDigits, '0').append(reinterpret_cast<const char *>(data), size);
    text.replace(edgekit::kSealStart.size(), edgekit::kSealDigits, edgekit::manifest_seal(text));
    std::ofstream(folder_ / edgekit::kManifestName, std::ios::binary) << text;
    return folder_.string();
  }

 private:
  fs::path folder_;
};

// Whether the call was served. A refusal says in one printable line what a file, not this library, does wrong.
bool served(ek_status status) {
  if (status == EK_OK) return true;
  edgekit_testing::require_one_line(ek_last_error());
  switch (status) {
    case EK_INVALID_ARGUMENT:    // sampler options
    case EK_OUT_OF_MEMORY:       // of a model that is said to be large
    case EK_OPEN_FAILED:
    case EK_CHECKSUM_MISMATCH:   // of a weights header that is said to be another
    case EK_MALFORMED_FILE:
    case EK_UNSUPPORTED_VERSION:
    case EK_UNSUPPORTED_BUNDLE:
    case EK_BUDGET_EXCEEDED:
    case EK_NOT_FINITE:
    case EK_STOPPED:             // by `on_event`
    case EK_INVALID_STATE:       // a prefix of a model that is said to have none
      return false;
    default:
      std::fprintf(stderr, "status %d: %s\n", status, ek_last_error());
      std::abort();
  }
}

int32_t on_event(const ek_event *event, void *left) {
  for (std::int64_t i = 0; i < event->count; ++i) EK_REQUIRE(event->ids[i] >= 0);
  return --*static_cast<int *>(left) <= 0;
}

void use(ek_session *session) {
  ek_session_info info{};
  info.struct_size = sizeof info;
  EK_REQUIRE(ek_session_get_info(session, &info) == EK_OK && info.vocabulary > 0 && info.hidden_size > 0);
  const std::int64_t ids[kPrompt] = {0, 1, 2, 3, 2, 1, 0};
  served(ek_session_prefill(session, ids, kPrompt));
  std::vector<std::int64_t> argmax(kIds), sample(kIds);
  std::vector<float> soft(static_cast<std::size_t>(kIds * info.hidden_size));
  ek_head_request request = EK_HEAD_REQUEST_INIT;
  ek_head_output output = EK_HEAD_OUTPUT_INIT;
  request.soft = request.gumbel = 1;
  output.argmax = argmax.data();
  output.sample = sample.data();
  output.soft = soft.data();
  for (const float *earlier : {static_cast<const float *>(nullptr), static_cast<const float *>(soft.data())}) {
    if (!served(ek_session_denoise(session, ids, kIds, earlier, &request, &output))) break;
    for (const std::vector<std::int64_t> &found : {argmax, sample}) {
      for (const std::int64_t id : found) EK_REQUIRE(id >= 0 && id < info.vocabulary);
    }
  }
  int events = 3;
  served(ek_generate(session, ids, kPrompt, nullptr, on_event, &events, nullptr));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
  static const Scratch scratch;
  const std::string bundle = scratch.with_manifest(data, size);
  ek_session_options options = EK_SESSION_OPTIONS_INIT;
  options.threads = 1 + static_cast<int>(size % 2);
  options.resident_bytes = size % 4 < 2 ? 0 : UINT64_MAX;
  options.memory_bytes = kMemory;
  options.positions = kPositions;
  options.canvas = kCanvas;
  ek_session *session = nullptr;
  if (served(ek_session_open(bundle.c_str(), &options, &session))) use(session);
  ek_session_close(session);
  return 0;
}

std::vector<std::string> edgekit_testing::fuzz_seeds() {
  std::ifstream file(given() / "edgekit.json", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return {text.substr(edgekit::kSealStart.size() + edgekit::kSealDigits)};
}
