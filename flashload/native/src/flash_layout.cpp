#include "flash_layout.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <unordered_set>

#include "error.h"
#include "flash_packed.h"
#include "json.h"
#include "printable.h"

namespace edgekit {
namespace {

constexpr std::uint64_t kMaxBytes = (std::uint64_t{1} << 63) - 1;  // file offsets are signed 64-bit
constexpr std::string_view kFormatVersion = "1", kPackedVersion = "2";
constexpr std::string_view kPadPrefix = "__pad__.";
constexpr std::string_view kLfsPointer = "version https://git-lfs";

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
    {"BF16", 2}, {"U32", 4},  {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
};

bool starts_with(std::string_view text, std::string_view start) noexcept {
  return text.substr(0, start.size()) == start;
}

// Messages about one file.
class HeaderParser {
 public:
  HeaderParser(std::uint64_t data_start, const std::string &where) : data_start_(data_start), where_(where) {}

  FlashLayout parse(const Json &table, std::uint64_t file_size) const {
    if (table.kind() != Json::Kind::object) {
      malformed("the header is not a JSON object; this is not a safetensors file");
    }
    bool packed = false;
    std::string plan;
    const std::string &runs_text = check_metadata(table.find("__metadata__"), packed, plan);
    if (data_start_ % kRunAlignment != 0) {
      malformed("data starts at ", data_start_, ", not at a multiple of ", kRunAlignment);
    }
    FlashLayout layout = packed ? parse_packed(runs_text, parse_tensors(table), data_start_, file_size, where_)
                                : parse_aligned(runs_text, table, file_size);
    layout.packed = packed;
    layout.data_start = data_start_;
    layout.plan = std::move(plan);
    layout.where = where_;
    return layout;
  }

 private:
  FlashLayout parse_aligned(const std::string &runs_text, const Json &table, std::uint64_t file_size) const {
    FlashLayout layout;
    layout.runs = parse_runs(runs_text);
    assign(layout.runs, parse_tensors(table));
    layout.size = layout.runs.back().offset + layout.runs.back().length;
    if (file_size < layout.size) {
      fail(EK_TRUNCATED_FILE, where_, ": has ", file_size, " of ", layout.size, " bytes; export or copy it again");
    }
    if (file_size > layout.size) {
      malformed(file_size - layout.size, " bytes follow the last run; export or copy it again");
    }
    for (std::size_t i = 0; i < layout.runs.size(); ++i) layout.index.emplace(layout.runs[i].name, i);
    return layout;
  }

  template <typename... Parts>
  [[noreturn]] void malformed(const Parts &...parts) const {
    fail(EK_MALFORMED_FILE, where_, ": ", parts...);
  }

  // The value of edgekit.runs; `packed`: whether the file is of the packed format; `plan`: the value of edgekit.plan.
  const std::string &check_metadata(const Json *metadata, bool &packed, std::string &plan) const {
    const std::string *format = nullptr, *runs = nullptr;
    if (metadata != nullptr) {
      if (metadata->kind() != Json::Kind::object) malformed("__metadata__ must map names to strings");
      for (const auto &[key, value] : metadata->object()) {
        if (value.kind() != Json::Kind::string) malformed("__metadata__ must map names to strings");
        if (key == "edgekit.format") format = &value.string();
        if (key == "edgekit.runs") runs = &value.string();
        if (key == "edgekit.plan") plan = value.string();
      }
    }
    if (format == nullptr || runs == nullptr) {
      malformed("is a safetensors file without runs; convert it with `edgekit export`");
    }
    packed = *format == kPackedVersion;
    if (*format != kFormatVersion && !packed) {
      fail(EK_UNSUPPORTED_VERSION, where_, ": flash format ", in_quotes(*format, 40), ", this edgekit reads '",
           kFormatVersion, "' and '", kPackedVersion, "'; update edgekit or export again");
    }
    return *runs;
  }

  // Whether a value is a whole number from 0 to kMaxBytes.
  static bool is_size(const Json &value) {
    return value.kind() == Json::Kind::integer && value.integer() >= 0;
  }

  static std::uint64_t size_of(const Json &value) { return static_cast<std::uint64_t>(value.integer()); }

  std::vector<Run> parse_runs(const std::string &text) const {
    const Json rows = Json::parse(text, where_ + ": edgekit.runs");
    if (rows.kind() != Json::Kind::array || rows.array().empty()) malformed("edgekit.runs must be a non-empty list");
    std::vector<Run> runs;
    std::unordered_set<std::string_view> names;
    std::uint64_t expected = data_start_;
    for (const Json &row : rows.array()) {
      Run run = parse_run(row);
      if (!names.insert(row.array()[0].string()).second) malformed("run ", run.name, " is listed twice");
      if (run.offset != expected) {
        malformed("run ", run.name, " starts at ", run.offset, ", expected ", expected,
                  " (the end of what comes before it)");
      }
      expected = run.offset + run.length;
      runs.push_back(std::move(run));
    }
    return runs;
  }

  Run parse_run(const Json &row) const {
    if (row.kind() != Json::Kind::array || row.array().size() != 4 ||
        row.array()[0].kind() != Json::Kind::string || row.array()[3].kind() != Json::Kind::string) {
      malformed("a run must be [name, offset, length, xxh3]");
    }
    const Json &offset = row.array()[1], &length = row.array()[2];
    Run run;
    run.name = row.array()[0].string();
    check_flash_name("run", run.name, where_);
    if (!is_size(offset) || !is_size(length) || size_of(length) == 0 ||
        size_of(offset) + size_of(length) > kMaxBytes) {
      malformed("run ", run.name, ": what its offset and length give is no span");
    }
    run.offset = size_of(offset);
    run.length = size_of(length);
    if (run.offset % kRunAlignment != 0 || run.length % kRunAlignment != 0) {
      malformed("run ", run.name, ": ", run.length, " bytes at ", run.offset, " is not aligned to ", kRunAlignment);
    }
    run.xxh3 = parse_flash_digest(run.name, row.array()[3].string(), where_);
    return run;
  }

  // Sorted by position, sizes checked against dtype and shape.
  std::vector<FlashSpan> parse_tensors(const Json &table) const {
    std::vector<FlashSpan> spans;
    for (const auto &[name, entry] : table.object()) {
      if (name == "__metadata__") continue;
      check_flash_name("tensor", name, where_);
      spans.push_back(parse_tensor(name, entry));
    }
    std::stable_sort(spans.begin(), spans.end(), [](const FlashSpan &a, const FlashSpan &b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    return spans;
  }

  FlashSpan parse_tensor(const std::string &name, const Json &entry) const {
    const Json *dtype = nullptr, *shape = nullptr, *offsets = nullptr;
    if (entry.kind() == Json::Kind::object && entry.object().size() == 3) {
      dtype = entry.find("dtype");
      shape = entry.find("shape");
      offsets = entry.find("data_offsets");
    }
    if (dtype == nullptr || shape == nullptr || offsets == nullptr) {
      malformed("tensor ", name, ": must have exactly dtype, shape and data_offsets");
    }
    if (dtype->kind() != Json::Kind::string) malformed("tensor ", name, ": unknown dtype: it is not a string");
    const auto *known = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                     [&](const Dtype &each) { return each.name == dtype->string(); });
    if (known == std::end(kDtypes)) {
      malformed("tensor ", name, ": unknown dtype ", in_quotes(dtype->string(), 40));
    }
    if (shape->kind() != Json::Kind::array ||
        !std::all_of(shape->array().begin(), shape->array().end(),
                     [](const Json &size) { return is_size(size) && size.integer() > 0; })) {
      malformed("tensor ", name, ": bad shape");
    }
    if (offsets->kind() != Json::Kind::array || offsets->array().size() != 2 || !is_size(offsets->array()[0]) ||
        !is_size(offsets->array()[1])) {
      malformed("tensor ", name, ": bad data_offsets");
    }
    FlashSpan span;
    span.begin = size_of(offsets->array()[0]);
    span.end = size_of(offsets->array()[1]);
    span.tensor.name = span.tensor.full_name = name;
    span.tensor.dtype = dtype->string();
    span.tensor.bytes = known->bytes;
    for (const Json &size : shape->array()) {
      if (span.tensor.bytes > kMaxBytes / size_of(size)) {
        malformed("tensor ", name, ": its shape overflows 2^63-1 bytes");
      }
      span.tensor.bytes *= size_of(size);
      span.tensor.shape.push_back(size.integer());
    }
    const std::int64_t given = offsets->array()[1].integer() - offsets->array()[0].integer();  // neither is negative
    if (given < 0 || static_cast<std::uint64_t>(given) != span.tensor.bytes) {
      malformed("tensor ", name, ": ", span.tensor.dtype, " ", shape_text(span.tensor.shape), " needs ",
                span.tensor.bytes, " bytes, its offsets ", span.begin, "..", span.end, " give ", given);
    }
    return span;
  }

  static std::string shape_text(const std::vector<std::int64_t> &shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + (shape.size() > 8 ? ", ...]" : "]");
  }

  // Hands every tensor to the run that contains it; refuses overlaps, holes and tensors across two runs.
  void assign(std::vector<Run> &runs, std::vector<FlashSpan> spans) const {
    std::uint64_t position = 0;
    std::size_t cursor = 0;
    for (Run &run : runs) {
      const std::uint64_t base = run.offset - data_start_, limit = base + run.length;
      for (; cursor < spans.size() && spans[cursor].begin < limit; ++cursor) {
        FlashSpan &span = spans[cursor];
        const std::string &name = span.tensor.name;
        if (span.begin < position) malformed("tensor ", name, " overlaps the one before it at byte ", span.begin);
        if (span.begin > position) {
          malformed("no tensor covers bytes ", position, "..", span.begin, " before ", name);
        }
        if (span.end > limit) malformed("tensor ", name, " crosses the end of run ", run.name);
        position = span.end;
        if (starts_with(name, kPadPrefix)) {
          if (span.tensor.dtype != "U8") malformed("tensor ", name, ": padding must be U8, found ", span.tensor.dtype);
          continue;
        }
        span.tensor.offset = span.begin - base;
        if (span.tensor.offset % kTensorAlignment != 0) {
          malformed("tensor ", name, " starts ", span.tensor.offset, " bytes into run ", run.name,
                    ", not at a multiple of ", kTensorAlignment);
        }
        run.tensors.push_back(std::move(span.tensor));
      }
      if (position != limit) {
        malformed("no tensor covers bytes ", position, "..", limit, " of run ", run.name);
      }
      if (run.tensors.empty()) malformed("run ", run.name, " holds no tensors");
      shorten_names(run);
    }
    if (cursor < spans.size()) malformed("tensor ", spans[cursor].tensor.name, " lies outside every run");
  }

  static void shorten_names(Run &run) {
    const std::string prefix = run.name + ".";
    std::unordered_set<std::string> full;
    for (const Tensor &tensor : run.tensors) full.insert(tensor.name);
    for (Tensor &tensor : run.tensors) {
      if (tensor.name.size() <= prefix.size() || !starts_with(tensor.name, prefix)) continue;
      std::string left = tensor.name.substr(prefix.size());
      if (full.count(left) == 0) tensor.name = std::move(left);
    }
  }

  std::uint64_t data_start_;
  const std::string &where_;
};

}  // namespace

bool parse_hex64(std::string_view text, std::uint64_t &value) noexcept {
  value = 0;
  if (text.size() != 16) return false;
  for (const char letter : text) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(letter);
    if (digit == std::string_view::npos) return false;
    value = value << 4 | digit;
  }
  return true;
}

std::string hex64(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 0xF];
  return text;
}

const Tensor *Run::find(std::string_view tensor) const noexcept {
  for (const Tensor &each : tensors) {
    if (each.name == tensor) return &each;
  }
  return nullptr;
}

std::vector<FlashSegment> Run::parts() const {
  if (!segments.empty()) return segments;
  return {FlashSegment{offset, 0, length, xxh3}};
}

const Run &FlashLayout::run(const std::string &name) const {
  const auto found = index.find(name);
  if (found == index.end()) {
    fail(EK_INVALID_ARGUMENT, where, ": has no run named ", in_quotes(name), "; it has ", runs.size(),
         " runs, the first is ", in_quotes(runs.front().name));
  }
  return runs[found->second];
}

std::uint64_t flash_header_length(std::string_view prefix, std::uint64_t file_size, const std::string &where) {
  if (starts_with(prefix, kLfsPointer)) {
    fail(EK_MALFORMED_FILE, where, ": is a Git LFS pointer, not the weights; run `git lfs pull`");
  }
  if (file_size < 8 || prefix.size() < 8) {
    const std::uint64_t found = file_size < 8 ? file_size : prefix.size();
    fail(EK_TRUNCATED_FILE, where, ": has ", found, " bytes, too few for a header; export or copy it again");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(prefix[i])} << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    fail(EK_MALFORMED_FILE, where, ": its first 8 bytes announce a header of ", length, " bytes, more than ",
         kMaxHeaderBytes, "; this is not a safetensors file");
  }
  if (prefix.size() > 8 && prefix[8] != '{') {
    fail(EK_MALFORMED_FILE, where, ": the header is not a JSON object; this is not a safetensors file");
  }
  if (8 + length > file_size) {
    fail(EK_TRUNCATED_FILE, where, ": the header needs ", 8 + length, " bytes but the file has ", file_size,
         "; export or copy it again");
  }
  return length;
}

FlashLayout parse_flash_header(std::string_view header, std::uint64_t file_size, const std::string &where) {
  const Json table = Json::parse(header, where + ": header");
  return HeaderParser(8 + header.size(), where).parse(table, file_size);
}

}  // namespace edgekit
