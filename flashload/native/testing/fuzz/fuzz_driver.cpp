// Runs a fuzz target without libFuzzer, which GCC does not have: edits of a seed corpus for a number of seconds.
//
//   edgekit_fuzz_parsers [seconds [seed [file...]]]
//
// The files join the built-in corpus. What is being tried is written to fuzz_input.bin before a crash ends the program,
// and `edgekit_fuzz_parsers 0 0 fuzz_input.bin` tries it again.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);
// Address and undefined behaviour sanitizers call what is set here before they end the program.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

std::string current;

void write_current() {
  std::ofstream("fuzz_input.bin", std::ios::binary) << current;
  std::fputs("the input is in fuzz_input.bin\n", stderr);
}

void on_signal(int signal) {
  write_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

const char *const kHeader =
    R"({"__metadata__": {"edgekit.format": "1", "edgekit.plan": "", "edgekit.runs": )"
    R"("[[\"r\",16384,16384,\"00000000000000ff\"],[\"layer.0\",32768,16384,\"0123456789abcdef\"]]"}, )"
    R"("r.a": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}, )"
    R"("__pad__.0": {"dtype": "U8", "shape": [32], "data_offsets": [32, 64]}, )"
    R"("b": {"dtype": "BF16", "shape": [8160], "data_offsets": [64, 16384]}, )"
    R"("layer.0.q": {"dtype": "U8", "shape": [2, 64, 128], "data_offsets": [16384, 32768]}})";

const char *const kManifest =
    R"({"schema_version": 1, "model": {"family": "llada"}, "programs": {}, "layers": [{"run": "layer.0"}], )"
    R"("sampler": {"steps": 64}, "quantization": {"bits": 4.0}, )"
    R"("weights": {"file": "weights.safetensors", "size": 5, "sha256": )"
    R"("00000000000000000000000000000000ffffffffffffffffffffffffffffffff"}, "files": {"a/b.json": {"size": 2, )"
    R"("sha256": "00000000000000000000000000000000ffffffffffffffffffffffffffffffff"}}, "provenance": {}})";

std::vector<std::string> built_in_corpus() {
  std::vector<std::string> corpus = {
      std::string(1, '\0') + R"({"a": [1, -2.5e-3, true, false, null, "x\u00e9\ud83d\ude00\n\\"], "b": {"": {}}})",
      std::string(1, '\0') + "[[[[[[[[9223372036854775807, -9223372036854775808, 1e308]]]]]]]]",
      std::string(1, '\1') + kHeader,
      std::string(1, '\3') + kManifest,
  };
  std::string file = kHeader;
  file.resize(16384 - 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(file.size() >> (8 * i));
  corpus.push_back(std::string(1, '\2') + length + file + std::string(32768, 'x'));
  return corpus;
}

const char *const kPieces[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "-", "0", "9", ".", "e5", "E-400", "\\u", "\\ud83d", "\\udc00", "\n", " ",
    "\xff", "\xc3", "\xc3\xa9", "\xed\xa0\x80", "\xf4\x90\x80\x80", "null", "true", "NaN", "Infinity", "[[[[[[[[",
    "{\"a\":", "18446744073709551616", "9223372036854775807", "9223372036854775808", "4294967296", "16384", "32768",
    "__pad__.1", "__metadata__", "edgekit.runs", "edgekit.format", "data_offsets", "dtype", "shape", "\"U8\"",
    "\"F64\"", "layer.0", "r.", "..", "/", "edgekit.json", "schema_version", "weights", "sha256", "size", "files",
};

class Editor {
 public:
  explicit Editor(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void edit(std::string &text, const std::string &other) {
    const std::size_t at = below(text.size() + 1), length = below(std::min<std::size_t>(text.size() - at, 24) + 1);
    switch (below(7)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 4:
        text.replace(at, length, kPieces[below(std::size(kPieces))]);
        break;
      case 5: {
        const std::size_t from = below(other.size() + 1);
        text.replace(at, length, other.substr(from, below(64)));
        break;
      }
      default:  // a digit: numbers decide most of what a header means
        for (std::size_t i = at; i < text.size(); ++i) {
          if (text[i] < '0' || text[i] > '9') continue;
          text[i] = static_cast<char>('0' + below(10));
          break;
        }
    }
  }

 private:
  std::mt19937_64 random_;
};

void try_input(const std::string &text) {
  current = text;
  // A copy without a byte to spare, so that reading past the end is seen.
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int count, char **arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 10;
  Editor editor(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device{}());
  std::vector<std::string> corpus = built_in_corpus();
  for (int i = 3; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: cannot open\n", arguments[i]);
      return 2;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(write_current);
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) std::signal(signal, on_signal);
  std::set_terminate([] { std::abort(); });  // an exception that is no Error

  for (const std::string &text : corpus) try_input(text);
  const auto start = std::chrono::steady_clock::now();
  const std::size_t first = corpus.size();
  std::uint64_t tried = corpus.size();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    std::string text = corpus[editor.below(corpus.size())];
    for (std::size_t edits = 1 + editor.below(4); edits > 0; --edits) {
      editor.edit(text, corpus[editor.below(corpus.size())]);
    }
    try_input(text);
    ++tried;
    // Edits of edits, a bounded number of them.
    if (editor.below(500) == 0 && text.size() < 100'000) {
      if (corpus.size() < first + 200) {
        corpus.push_back(text);
      } else {
        corpus[first + editor.below(200)] = text;
      }
    }
  }
  std::printf("%llu inputs, no failure\n", static_cast<unsigned long long>(tried));
  return 0;
}
