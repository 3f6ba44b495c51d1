// The parsers over hostile text, and the hash over memory that ends where the data ends: for the sanitizers. What the
// values must be is compared with other implementations in tests/flash/test_native_parsing.py.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bundle_folder.h"
#include "error.h"
#include "flash_layout.h"
#include "json.h"
#include "manifest_reader.h"
#include "portable_names.h"
#include "printable.h"
#include "residency.h"
#include "unit.h"
#include "xxh3.h"
#include "xxh3_kernels.h"

namespace {

using edgekit::Error;
using edgekit::Json;

// The status of what `function` throws; EK_OK when it does not.
template <typename Function>
ek_status status_of(Function function) {
  try {
    function();
    return EK_OK;
  } catch (const Error &error) {
    EK_CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.status();
  }
}

// Parses a copy without a byte to spare, so that reading past the end is seen.
ek_status json_status(const std::string &text) {
  const auto copy = std::make_unique<char[]>(text.size());
  std::memcpy(copy.get(), text.data(), text.size());
  return status_of([&] { Json::parse({copy.get(), text.size()}, "text"); });
}

std::string header_of(const std::string &entries, const std::string &runs, std::size_t size = 16 * 1024 - 8) {
  std::string quoted_runs;
  for (const char letter : runs) quoted_runs += letter == '"' ? std::string("\\\"") : std::string(1, letter);
  std::string text =
      R"({"__metadata__": {"edgekit.format": "1", "edgekit.runs": ")" + quoted_runs + "\"}" + entries + "}";
  text.resize(size, ' ');
  return text;
}

const std::string kTwoTensors =
    R"(, "r.a": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},)"
    R"("__pad__.0": {"dtype": "U8", "shape": [32], "data_offsets": [32, 64]},)"
    R"("b": {"dtype": "U8", "shape": [16320], "data_offsets": [64, 16384]})";
const std::string kOneRun = R"([["r", 16384, 16384, "00000000000000ff"]])";

std::string sealed(std::string text) {
  const std::size_t start = edgekit::kSealStart.size();
  text.replace(start, edgekit::kSealDigits, edgekit::manifest_seal(text));
  return text;
}

std::string manifest_text(const std::string &weights, int version = 2) {
  return sealed(std::string(edgekit::kSealStart) + std::string(edgekit::kSealDigits, '0') + R"(", "schema_version": )" +
                std::to_string(version) + R"(, "model": {}, "programs": {}, "layers": [], "sampler": {}, )"
                R"("quantization": {}, "weights": )" + weights + R"(, "files": {}, "provenance": {}})");
}

const std::string kWeights = R"({"file": "w.safetensors", "size": 32768, "sha256": ")" + std::string(64, 'a') +
                             R"(", "header_size": 16384, "header_xxh3": "0000000000000000"})";

}  // namespace

EK_TEST(json_values) {
  const Json root = Json::parse(R"( {"a": [1, -2.5e1, true, null, "x\u00e9\ud83d\ude00\n"], "": {}} )", "text");
  const auto &items = root.at("a").array();
  EK_CHECK(items.size() == 5 && items[0].integer() == 1 && items[0].number() == 1.0);
  EK_CHECK(items[1].number() == -25.0 && items[2].boolean() && items[3].is_null());
  EK_CHECK(items[4].string() == "x\xC3\xA9\xF0\x9F\x98\x80\n");
  EK_CHECK(root.find("b") == nullptr && root.at("").object().empty());
  EK_CHECK(root.where() == "text" && items[4].where() == "text");
  const Json copy = root;  // outlives its source
  EK_CHECK(copy.at("a").array()[0].integer() == 1);
  EK_CHECK(Json::parse("-9223372036854775808", "t").integer() == INT64_MIN);
  EK_CHECK(Json::parse("9223372036854775808", "t").kind() == Json::Kind::number);
  EK_CHECK(Json::parse("9223372036854775808", "t").number() == 9223372036854775808.0);
}

EK_TEST(json_wrong_kinds) {
  const Json root = Json::parse("{\"a\": [1.5,\n 1e999]}", "text");
  EK_CHECK(status_of([&] { root.at("b"); }) == EK_MALFORMED_FILE);
  EK_CHECK(status_of([&] { root.array(); }) == EK_MALFORMED_FILE);
  EK_CHECK(status_of([&] { root.at("a").find("b"); }) == EK_MALFORMED_FILE);
  EK_CHECK(status_of([&] { root.at("a").array()[0].integer(); }) == EK_MALFORMED_FILE);
  EK_CHECK(status_of([&] { root.at("a").array()[1].number(); }) == EK_MALFORMED_FILE);
  try {
    root.at("a").array()[1].string();
    EK_CHECK(false);
  } catch (const Error &error) {
    EK_CHECK(std::string(error.what()) == "text: expected a string in line 2, found a number; export it again");
  }
}

EK_TEST(json_hostile_text) {
  const std::string whole = R"({"key": [1, -0.5e+3, "a\u12ab\\", true, false, null], "other": {"x": []}})";
  EK_CHECK(json_status(whole) == EK_OK);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EK_CHECK(json_status(whole.substr(0, size)) == EK_MALFORMED_FILE);
  }
  for (const char *text :
       {"", " ", "1 2", "01", "1.", ".5", "+1", "-", "1e", "1e+", "nul", "NaN", "Infinity", "-Infinity", "[1,]", "{,}",
        "{\"a\"}", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{'a':1}", "\"\\x\"", "\"\\u12g4\"", "\"\\ud800\\u12\"", "\"\n\"",
        "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"", "\xEF\xBB\xBF{}", "[1}",
        "{\"a\":1]"}) {
    EK_CHECK(json_status(text) == EK_MALFORMED_FILE);
  }
  EK_CHECK(json_status(std::string("\"a\0\"", 4)) == EK_MALFORMED_FILE);
  EK_CHECK(json_status(std::string("1\0", 2)) == EK_MALFORMED_FILE);
  EK_CHECK(json_status(std::string(100'000, '[')) == EK_MALFORMED_FILE);
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EK_CHECK(json_status(nested(Json::kMaxDepth)) == EK_OK);
  EK_CHECK(json_status(nested(Json::kMaxDepth + 1)) == EK_MALFORMED_FILE);
  EK_CHECK(json_status(std::string(Json::kMaxIntegerDigits, '9')) == EK_OK);
  EK_CHECK(json_status(std::string(Json::kMaxIntegerDigits + 1, '9')) == EK_MALFORMED_FILE);
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"" + std::to_string(i) + "\": 0, ";
  EK_CHECK(json_status(many + "\"100\": 0}") == EK_OK);
  EK_CHECK(json_status(many + "\"57\": 0}") == EK_MALFORMED_FILE);
}

EK_TEST(json_in_several_threads) {
  const Json root = Json::parse(R"({"a": {"b": [1, 2.5, "c"]}})", "text");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&root] {
      for (int j = 0; j < 100; ++j) {
        const Json copy = root.at("a");
        Json::parse(R"([1.5, "x"])", "other");
        if (copy.at("b").array().size() != 3) std::abort();
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
}

EK_TEST(quoted_text) {
  EK_CHECK(edgekit::in_quotes("a'b\\\n\xC3\xA9\xED\xA0\x80") == "'a\\'b\\\\\\x0a\xC3\xA9\\ud800'");
  EK_CHECK(edgekit::in_quotes("abcdef", 3) == "'abc...'");
  EK_CHECK(edgekit::in_quotes("") == "''");
  EK_CHECK(edgekit::is_printable("layer.0 \xC3\xA9") && !edgekit::is_printable("a\tb"));
  EK_CHECK(!edgekit::is_printable("\xE2\x80\x8B") && !edgekit::is_printable("\xF4\x80\x80\x80"));
  for (const char *cut : {"\xF0", "\xF0\x9F", "\xE2\x80", "\xC3"}) edgekit::in_quotes(cut);
}

EK_TEST(messages_are_one_line_of_utf8) {
  const std::string kept = "a 'b' C:\\d \xC3\xA9\xC2\xA0\xE2\x80\x8D\xF0\x9F\x92\xBB";
  EK_CHECK(edgekit::one_line(kept) == kept && edgekit::one_line("").empty());
  EK_CHECK(edgekit::one_line("a\n\x1B[2J\t\x7F\xC2\x85") == "a\\x0a\\x1b[2J\\x09\\x7f\\x85");
  EK_CHECK(edgekit::one_line("\xE2\x80\xA8\xED\xA0\x80z") == "\\u2028\\ud800z");
  // Bytes that are no UTF-8, at the end and in the middle: cut, too long, too large, alone.
  EK_CHECK(edgekit::one_line("\xED  ") == "\\xed  ");
  EK_CHECK(edgekit::one_line("\xF0\x9F") == "\\xf0\\x9f" && edgekit::one_line("\xED\xA0") == "\\xed\\xa0");
  EK_CHECK(edgekit::one_line("\xC0\xAF" "a\xC3(\xF5\x80\x80\x80") == "\\xc0\\xafa\\xc3(\\xf5\\x80\\x80\\x80");
  EK_CHECK(std::string(edgekit::Error(EK_INTERNAL, "x\ny").what()) == "x\\x0ay");
}

EK_TEST(xxh3_reads_no_byte_too_many) {
  for (const char *name : {"portable", "neon", "avx2", "avx512"}) {
    const edgekit::Xxh3Loop loop = edgekit::xxh3_find_loop(name);
    if (loop == nullptr) continue;
    for (std::size_t size = 0; size <= 2500; ++size) {
      const auto data = std::make_unique<std::uint8_t[]>(size);
      for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::uint8_t>(i * 31 + (i >> 8));
      EK_CHECK(edgekit::xxh3_64_with(loop, data.get(), size) == edgekit::xxh3_64(data.get(), size));
    }
  }
  EK_CHECK(edgekit::xxh3_find_loop("no such loop") == nullptr);
}

EK_TEST(xxh3_known_values) {  // printed by the xxhash package
  EK_CHECK(edgekit::xxh3_64("", 0) == 0x2d06800538d394c2);
  EK_CHECK(edgekit::xxh3_64("abc", 3) == 0x78af5f94892f3950);
  const std::string zeros(5000, '\0');
  EK_CHECK(edgekit::xxh3_64(zeros.data(), zeros.size()) == 0x95929931b75a6d9f);
}

EK_TEST(flash_header) {
  const edgekit::FlashLayout layout = edgekit::parse_flash_header(header_of(kTwoTensors, kOneRun), 32768, "f");
  EK_CHECK(layout.size == 32768 && layout.runs.size() == 1);
  const edgekit::Run &run = layout.run("r");
  EK_CHECK(run.offset == 16384 && run.length == 16384 && run.xxh3 == 255 && run.tensors.size() == 2);
  EK_CHECK(run.find("a")->shape == std::vector<std::int64_t>({4, 2}) && run.find("b")->offset == 64);
  EK_CHECK(run.find("r.a") == nullptr);
  EK_CHECK(status_of([&] { layout.run("s"); }) == EK_INVALID_ARGUMENT);
  const auto parse = [](const std::string &header, std::uint64_t size) {
    return status_of([&] { edgekit::parse_flash_header(header, size, "f"); });
  };
  EK_CHECK(parse(header_of(kTwoTensors, kOneRun), 32767) == EK_TRUNCATED_FILE);
  EK_CHECK(parse(header_of(kTwoTensors, kOneRun), 32769) == EK_MALFORMED_FILE);
  EK_CHECK(parse(header_of(kTwoTensors, kOneRun, 16 * 1024), 32776) == EK_MALFORMED_FILE);
  EK_CHECK(parse(header_of(kTwoTensors, "[]"), 32768) == EK_MALFORMED_FILE);
  EK_CHECK(parse(header_of("", kOneRun), 32768) == EK_MALFORMED_FILE);
  EK_CHECK(parse(header_of(kTwoTensors, R"([["r", 16384, 9223372036854775807, "00000000000000ff"]])"), 32768) ==
           EK_MALFORMED_FILE);
  EK_CHECK(parse(header_of(R"(, "t": {"dtype": "F64", "shape": [4294967296, 4294967296, 0], "data_offsets": [0, 0]})",
                           kOneRun), 32768) == EK_MALFORMED_FILE);
}

EK_TEST(tensor_names_stay_unique_within_a_run) {
  const std::string entries =
      R"(, "r.a": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]},)"
      R"("a": {"dtype": "U8", "shape": [64], "data_offsets": [64, 128]},)"
      R"("r.r.a": {"dtype": "U8", "shape": [64], "data_offsets": [128, 192]},)"
      R"("r.": {"dtype": "U8", "shape": [64], "data_offsets": [192, 256]},)"
      R"("r.b": {"dtype": "U8", "shape": [16128], "data_offsets": [256, 16384]})";
  const edgekit::FlashLayout layout = edgekit::parse_flash_header(header_of(entries, kOneRun), 32768, "f");
  std::string names;
  for (const edgekit::Tensor &tensor : layout.runs[0].tensors) names += tensor.name + " ";
  EK_CHECK(names == "r.a a r.r.a r. b ");
}

EK_TEST(flash_header_length) {
  const auto length = [](std::string prefix, std::uint64_t size) {
    return status_of([&] { edgekit::flash_header_length(prefix, size, "f"); });
  };
  const std::string good("\x05\0\0\0\0\0\0\0{", 9);
  EK_CHECK(edgekit::flash_header_length(good, 100, "f") == 5);
  EK_CHECK(length(good, 12) == EK_TRUNCATED_FILE);
  EK_CHECK(length(good.substr(0, 7), 7) == EK_TRUNCATED_FILE);
  EK_CHECK(length("", 0) == EK_TRUNCATED_FILE);
  EK_CHECK(length(std::string(16, '\xFF'), ~std::uint64_t{0}) == EK_MALFORMED_FILE);
  EK_CHECK(length(std::string("\x05\0\0\0\0\0\0\0[", 9), 100) == EK_MALFORMED_FILE);
  EK_CHECK(length("version https://git-lfs.github.com/spec/v1", 130) == EK_MALFORMED_FILE);
}

EK_TEST(residency_plans) {
  edgekit::BudgetTooSmall too_small;
  const auto plan = [&](const std::vector<edgekit::Unit> &units, std::uint64_t budget) {
    return edgekit::plan_residency(units, budget, 0, 2, too_small);
  };
  EK_CHECK(plan({}, 0).pinned.empty() && too_small.needed == 0);
  std::vector<edgekit::Unit> units;
  for (int i = 0; i < 10; ++i) units.push_back({"layer" + std::to_string(i), 100, "layer"});
  const edgekit::ResidencyPlan half = plan(units, 700);
  EK_CHECK(half.pinned.size() == 5 && half.pinned.count("layer1") == 1 && half.pinned.count("layer0") == 0);
  EK_CHECK(half.ring_bytes == 200 && half.pinned_bytes == 500 && half.streamed_bytes == 500);
  EK_CHECK(plan(units, 199).pinned.empty() && too_small.needed == 200);
  EK_CHECK(plan(units, ~std::uint64_t{0}).ring_bytes == 0 && too_small.needed == 0);
  const std::uint64_t most = (std::uint64_t{1} << 63) - 1;
  EK_CHECK(plan({{"a", most, "g"}}, most - 1).pinned.empty() && too_small.needed == most);
  for (const std::vector<edgekit::Unit> &bad : std::vector<std::vector<edgekit::Unit>>{
           {{"a", 0, "g"}}, {{"a", 1, "g"}, {"a", 1, "g"}}, {{"a", most, "g"}, {"b", 1, "g"}}}) {
    EK_CHECK(status_of([&] { plan(bad, 10); }) == EK_INVALID_ARGUMENT);
  }
  EK_CHECK(status_of([&] { edgekit::plan_residency(units, 10, 0, 0, too_small); }) == EK_INVALID_ARGUMENT);
}

EK_TEST(manifests) {
  EK_CHECK(edgekit::parse_manifest(manifest_text(kWeights), "m").weights.name == "w.safetensors");
  const auto with_file = [](const std::string &name) {
    std::string text = manifest_text(kWeights);
    text = sealed(text.replace(text.find("w.safetensors"), 13, name));
    return status_of([&] { edgekit::parse_manifest(text, "m"); });
  };
  for (const char *name : {"a/b", ".a", "a..b/c"}) EK_CHECK(with_file(name) == EK_OK);
  for (const char *name : {"", ".", "..", "/a", "a/", "a//b", "a/./b", "a/..", "../a", "a:b", "a\\\\b", "a\\u0000", "...", "con",
                           "n\xC3\xA4h", "Edgekit.json", "edgekit.json/a"}) {
    EK_CHECK(with_file(name) == EK_MALFORMED_FILE);
  }
  const std::string newer = manifest_text(kWeights, 3);
  EK_CHECK(status_of([&] { edgekit::parse_manifest(newer, "m"); }) == EK_UNSUPPORTED_VERSION);
  EK_CHECK(status_of([&] { edgekit::parse_manifest("{ \"schema_version\" :1}", "m"); }) == EK_UNSUPPORTED_VERSION);
  for (const char *none : {"", "{", "{}", "[1]", "{\"schema_version\":"}) {
    EK_CHECK(status_of([&] { edgekit::parse_manifest(none, "m"); }) == EK_MALFORMED_FILE);
  }
  const std::string whole = manifest_text(kWeights);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string text = whole;
    text[i] = static_cast<char>(text[i] ^ 1);
    EK_CHECK(status_of([&] { edgekit::parse_manifest(text, "m"); }) != EK_OK);
    EK_CHECK(status_of([&] { edgekit::parse_manifest(whole.substr(0, i), "m"); }) != EK_OK);
  }
}

EK_TEST(names_that_every_system_takes) {
  const std::string long_part(255, 'x');
  for (const std::string &each : std::vector<std::string>{"a", "a/b c/d.e", ".hidden", "a#1 & b+c%20='~'.txt", "console", "com", "com10", "lpt", "nulls.txt", "auxiliary",
                                 "a.con", " a", long_part}) {
    EK_CHECK(edgekit::portable_fault(each).empty());
  }
  for (const std::string &each : std::vector<std::string>{"", "a/", "/a", "a//b", "./a", "..", "con", "CON", "Aux.txt", "a/nul", "nul.tar.gz", "aux /b", "aux .txt",
                                 "COM1", "lpt9.x", "com0", "prn", "conin$", "CLOCK$", "a.", "a ", "a./b", "a /b", "...", "a:b", "a?", "a*", "a<",
                                 "a|b", "a\"b", "a\\b", "a\tb", "a\nb", "\x7f", "n\xC3\xA4h", "\xFF", long_part + "x"}) {
    EK_CHECK(!edgekit::portable_fault(each).empty());
  }
  std::string deep = "a";
  while (deep.size() < 1024) deep += "/a";
  EK_CHECK(edgekit::portable_fault(deep.substr(0, 1023)).empty() && !edgekit::portable_fault(deep).empty());
  EK_CHECK(!edgekit::portable_fault(std::string("a\0b", 3)).empty());
  const auto clash = [](std::vector<std::string> paths) {
    edgekit::PortableNames names;
    std::string found;
    for (const std::string &path : paths) found = names.add(path);
    return found;
  };
  EK_CHECK(clash({"a", "b", "c/a", "c/b"}).empty());
  EK_CHECK(clash({"README.md", "x", "readme.md"}) == "README.md");
  EK_CHECK(clash({"a/b", "A/c"}) == "a/b");
  EK_CHECK(clash({"a/b", "a"}) == "a/b" && clash({"a", "a/b"}) == "a" && clash({"A", "a/b"}) == "A");
  EK_CHECK(clash({"a/b/c", "a/B/d"}) == "a/b/c" && clash({"a", "a"}) == "a");
}

EK_TEST(manifest_of_a_folder) {
  namespace fs = std::filesystem;
  // The path has letters beyond ASCII.
  const fs::path folder =
      fs::temp_directory_path() / fs::u8path("edgekit_\xC3\xA9\xE6\x96\x87_" + std::to_string(std::random_device{}()));
  const auto status = [&] { return status_of([&] { edgekit::BundleFolder(folder.u8string()); }); };
  EK_CHECK(status() == EK_OPEN_FAILED);
  fs::create_directories(folder / "edgekit.json");
  EK_CHECK(status() == EK_OPEN_FAILED);
  fs::remove(folder / "edgekit.json");
  std::ofstream(folder / "edgekit.json", std::ios::binary) << manifest_text(kWeights);
  EK_CHECK(edgekit::BundleFolder(folder.u8string()).weights().name == "w.safetensors");
  std::ofstream(folder / "edgekit.json") << "";
  EK_CHECK(status() == EK_MALFORMED_FILE);
  fs::resize_file(folder / "edgekit.json", edgekit::kMaxManifestBytes + 1);
  EK_CHECK(status() == EK_MALFORMED_FILE);
  fs::remove_all(folder);
}
