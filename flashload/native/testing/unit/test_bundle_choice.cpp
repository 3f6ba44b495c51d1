// Which bundle of a set is taken, and what is said where none is.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bundle_choice.h"
#include "bundle_folder.h"
#include "bundle_set.h"
#include "error.h"
#include "manifest_reader.h"
#include "scratch.h"
#include "unit.h"
#include "xxh3.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;
using edgekit_testing::Scratch;

struct Listed {
  const char *path, *format, *systems, *chips = "[]";  // the last two as JSON
};

// A bundle for new systems, one for older ones, and one for all.
const std::vector<Listed> kApple{{"coreai", "coreai", R"({"ios":"27","macos":"27"})"},
                                 {"old", "coreml", R"({"ios":"18","macos":"15.4"})"},
                                 {"native", "native", "{}"}};
const std::vector<Listed> kAndroid{{"qnn", "qnn", "{}"}, {"native", "native", "{}"}};

std::string list_of(const std::vector<Listed> &members, const std::string &manifest = "manifest") {
  const std::string digest = hex64(xxh3_64(manifest.data(), manifest.size()));
  std::string bundles, files;
  for (const Listed &each : members) {
    bundles += (bundles.empty() ? "" : ",") + std::string(R"({"path":")") + each.path + R"(","format":")" + each.format +
               R"(","minimum_os":)" + each.systems + R"(,"chips":)" + each.chips + "}";
    files += (files.empty() ? "" : ",") + std::string("\"") + each.path + R"(/edgekit.json":{"size":)" +
             std::to_string(manifest.size()) + R"(,"sha256":")" + std::string(64, '0') + R"(","xxh3":")" + digest + "\"}";
  }
  return R"({"schema_version":4,"bundles":[)" + bundles + R"(],"files":{)" + files + "}}";
}

void write(const fs::path &path, const std::string &text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

template <typename Body>
std::string failure(ek_status status, Body &&body) {
  try {
    body();
  } catch (const Error &error) {
    EK_CHECK(error.status() == status);
    return error.what();
  }
  throw edgekit_testing::Failed("nothing was refused");
}

bool says(const std::string &text, const std::string &words) { return text.find(words) != std::string::npos; }

std::string taken(const std::vector<Listed> &members, const std::vector<std::string> &formats, const char *system = "",
                  const char *version = "", const char *chip = "") {
  const BundleSet set = parse_bundle_set(list_of(members), "bundles.json");
  return choose_member(set, {formats, system, version, chip}, "bundles.json").path;
}

EK_TEST(the_first_bundle_that_runs_is_taken) {
  const std::vector<std::string> every{"native", "coreml", "coreai"};
  EK_CHECK(taken(kApple, {}) == "coreai");
  EK_CHECK(taken(kApple, every, "ios", "27") == "coreai");
  EK_CHECK(taken(kApple, every, "ios", "27.0.1") == "coreai");
  EK_CHECK(taken(kApple, every, "macos", "26.10") == "old");
  EK_CHECK(taken(kApple, every, "macos", "15.10") == "old");
  EK_CHECK(taken(kApple, every, "macos", "15.4") == "old");
  EK_CHECK(taken(kApple, every, "macos", "15.3") == "native");
  EK_CHECK(taken(kApple, {"native"}, "ios", "27") == "native");
  EK_CHECK(taken(kApple, {"coreml", "coreai"}) == "coreai");  // the order of formats does not matter
  EK_CHECK(taken(kApple, every, "watchos", "1") == "coreai");  // no bundle names it
  EK_CHECK(taken(kAndroid, {"native"}) == "native");
  EK_CHECK(taken(kAndroid, {"native", "qnn"}) == "qnn");
}

EK_TEST(what_is_compiled_for_other_chips_is_taken_where_nothing_else_runs) {
  const std::vector<std::string> every{"native", "qnn"};
  const std::vector<Listed> compiled{{"qnn", "qnn", "{}", R"(["sm8550","sm8650"])"}, {"native", "native", "{}"}};
  const auto on = [&](const std::vector<Listed> &members, const char *chip) { return taken(members, every, "", "", chip); };
  EK_CHECK(on(compiled, "sm8650") == "qnn" && on(compiled, "sm8650-ac") == "qnn");
  EK_CHECK(on(compiled, "sm8750") == "native" && on(compiled, "sm865") == "native" && on(compiled, "sm86500") == "native");
  EK_CHECK(on(compiled, "") == "qnn");        // nobody knows
  EK_CHECK(on(kAndroid, "sm8750") == "qnn");  // every chip compiles it
  EK_CHECK(taken(compiled, {"qnn"}, "", "", "sm8750") == "qnn");
}

EK_TEST(what_keeps_each_bundle_from_running_is_said) {
  const std::vector<Listed> old(kApple.begin(), kApple.begin() + 2);
  EK_CHECK(failure(EK_UNSUPPORTED_BUNDLE, [&] { taken(old, {"native", "coreml"}, "macos", "15.3"); }) ==
           "bundles.json: none of its bundles runs here: 'coreai' is not for native or coreml and 'old' is for macos 15.4 and "
           "later; this is macos 15.3; export one for that");
  EK_CHECK(says(failure(EK_UNSUPPORTED_BUNDLE, [&] { taken(old, {}, "ios", "17"); }), "later; this is ios 17; export"));
  EK_CHECK(failure(EK_UNSUPPORTED_BUNDLE, [&] { taken(kAndroid, {"mlx"}); }) ==
           "bundles.json: has bundles for 'qnn' and 'native', not for mlx; export one for that");
  EK_CHECK(says(failure(EK_UNSUPPORTED_BUNDLE, [&] { taken(kAndroid, {"mlx", "coreml", "onnx"}, "ios", "17"); }),
                ", not for mlx, coreml or onnx; export one for that"));
  EK_CHECK(says(failure(EK_INVALID_ARGUMENT, [&] { taken(kApple, {}, "ios", "new"); }), "'new' is no version"));
}

EK_TEST(lists_of_bundles_are_compared_with_their_rules) {
  struct Case {
    const char *from, *to, *said;
  };
  const Case cases[] = {
      {R"("schema_version":4)", R"("schema_version":3)", "schema version 3, this edgekit reads 4"},
      {R"({"ios":"27","macos":"27"})", R"({"tvos":"27"})", "names 'tvos', a system"},
      {R"({"ios":"27","macos":"27"})", R"(["27"])", "minimum_os is not an object"},
      {R"({"ios":"27","macos":"27"})", R"({"ios":27})", "minimum_os of a bundle is no text"},
      {R"({"ios":"27","macos":"27"})", R"({"ios":"27."})", "'27.' is no version"},
      {R"({"ios":"27","macos":"27"})", R"({"ios":""})", "'' is no version"},
      {R"({"ios":"27","macos":"27"})", R"({"ios":"9999999999"})", "is no version"},
      {R"({"ios":"27","macos":"27"})", "{}", "newer systems must come before"},
      {R"({"ios":"27","macos":"27"})", R"({"ios":"27"})", "newer systems must come before"},  // of macOS
      {R"("path":"old")", R"("path":"coreai")", "two bundles have the same path"},
      {R"("format":"coreml")", R"("format":"native")", "two bundles have the same format"},
      {R"("path":"old")", R"("path":"../old")", "'../old' is not a plain relative path"},
      {R"("path":"old",)", "", "a bundle has no path"},
      {R"("files":)", R"("file":)", "the file has no files"},
  };
  for (const Case &each : cases) {
    std::string text = list_of(kApple);
    const std::size_t at = text.find(each.from);
    EK_CHECK(at != std::string::npos);
    text.replace(at, std::string(each.from).size(), each.to);
    try {
      parse_bundle_set(text, "bundles.json");
      throw edgekit_testing::Failed(each.said);
    } catch (const Error &error) {
      if (!says(error.what(), each.said)) throw edgekit_testing::Failed(error.what());
    }
  }
}

EK_TEST(a_folder_is_the_bundle_that_is_chosen_there) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  const std::string name = folder.u8string();
  const BundleRunner processor{{"native"}, "", "", ""}, npu{{"native", "qnn"}, "", "", ""};
  const auto chosen = [&](const BundleRunner &runner, SetState state = SetState::whole) {
    return fs::u8path(choose_bundle(name, runner, state));
  };
  EK_CHECK(kind_of_folder(name) == FolderKind::other && kind_of_folder(name + "/none") == FolderKind::other);
  EK_CHECK(kind_of_folder(std::string("a\0b", 3)) == FolderKind::other);
  EK_CHECK(says(failure(EK_OPEN_FAILED, [&] { chosen(npu); }), "has no edgekit.json"));
  const auto none = [&] { choose_bundle(name + "/none", npu, SetState::whole); };
  EK_CHECK(says(failure(EK_OPEN_FAILED, none), "none: cannot open"));
  fs::create_directories(folder / kBundleSetName);  // a folder of that name is no list
  EK_CHECK(kind_of_folder(name) == FolderKind::other);
  fs::remove(folder / kBundleSetName);

  write(folder / kBundleSetName, list_of(kAndroid));
  EK_CHECK(kind_of_folder(name) == FolderKind::set);
  EK_CHECK(chosen(npu, SetState::listed) == folder / "qnn");
  EK_CHECK(says(failure(EK_OPEN_FAILED, [&] { chosen(npu); }), "edgekit.json: is missing"));
  write(folder / "native" / kManifestName, "manifest");
  EK_CHECK(chosen(processor) == folder / "native");
  write(folder / "qnn" / kManifestName, "manifesto");
  EK_CHECK(says(failure(EK_MALFORMED_FILE, [&] { chosen(npu); }), "has 9 bytes, the manifest says 8"));
  write(folder / "qnn" / kManifestName, "manifesT");
  EK_CHECK(says(failure(EK_CHECKSUM_MISMATCH, [&] { chosen(npu); }), "has xxh3"));
  EK_CHECK(chosen(processor) == folder / "native");

  std::string unlisted = list_of(kAndroid);
  unlisted.replace(unlisted.find("qnn/edgekit"), 3, "abc");
  write(folder / kBundleSetName, unlisted);
  EK_CHECK(says(failure(EK_MALFORMED_FILE, [&] { chosen(npu, SetState::listed); }), "does not list 'qnn/edgekit.json'"));

  write(folder / kManifestName, "{}");  // beside the list: the folder is one bundle
  EK_CHECK(kind_of_folder(name) == FolderKind::bundle && chosen(npu) == folder);
}

}  // namespace
}  // namespace edgekit
