#include "session/saved_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "error.h"
#include "new_file.h"
#include "xxh3.h"

namespace edgekit {
namespace {

constexpr std::string_view kMagic = "edgekit kv file\n";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kWord = 8, kStart = 16 + 6 * kWord;
// Of keys and values in memory besides what is kept.
constexpr std::int64_t kBlockFloats = std::int64_t{1} << 18;
// Far beyond any model; products of all of them fit 64 bits.
constexpr std::int64_t kMostHeads = 1 << 12, kMostWidth = 1 << 14, kMostLayers = 1 << 14, kMostVocabulary = 1 << 30,
                       kMostAdapters = 1 << 20;
constexpr std::size_t kMostName = 256;

void put(std::string &out, std::uint64_t value) {
  for (std::size_t i = 0; i < kWord; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put(std::string &out, std::int64_t value) { put(out, static_cast<std::uint64_t>(value)); }

void put(std::string &out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out += text;
}

void put(std::string &out, const std::vector<std::int64_t> &values) {
  put(out, std::uint64_t{values.size()});
  for (const std::int64_t value : values) put(out, value);
}

std::uint64_t word_at(const char *at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kWord; ++i) value |= std::uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return value;
}

// Of a layer of these heads.
std::int64_t rows_of_block(const KvGeometry &shape) {
  return std::max<std::int64_t>(1, kBlockFloats / std::max<std::int64_t>(1, 2 * shape.kv_heads * shape.head_dim));
}

// Keys or values of one head, in blocks of rows.
struct HeadRows {
  float *data = nullptr;
  std::int64_t stride = 0;  // floats between heads
};

HeadRows of(const Strided &given) { return {given.data, given.stride[1]}; }

// The rows first..first+count of all heads of keys and values, one head behind the other, as copies between an engine's
// memory and `staged`.
std::vector<FloatCopy> copies(const KeyPiece &piece, const KvGeometry &shape, std::int64_t first, std::int64_t count,
                              float *staged, bool out) {
  std::vector<FloatCopy> made;
  for (const HeadRows &part : {of(piece.keys), of(piece.values)}) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      FloatCopy copy;
      float *there = part.data + head * part.stride + first * shape.head_dim;
      copy.count = count * shape.head_dim;
      copy.to = out ? staged : there;
      copy.from = out ? there : staged;
      (out ? copy.to_session : copy.from_session) = true;
      made.push_back(copy);
      staged += copy.count;
    }
  }
  return made;
}

// To int8, for each position and head by its largest number; what is not finite stays that.
void round_rows(const float *x, std::int64_t rows, std::int64_t width, float *scales, std::int8_t *codes) {
  for (std::int64_t row = 0; row < rows; ++row, x += width, codes += width) {
    float most = 0.0f;
    bool finite = true;
    for (std::int64_t i = 0; i < width; ++i) {
      most = std::max(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    scales[row] = finite ? most / 127.0f : std::nanf("");
    const float factor = finite && most > 0.0f ? 127.0f / most : 0.0f;
    for (std::int64_t i = 0; i < width; ++i) {
      const float code = std::isfinite(factor) && factor != 0.0f ? std::nearbyint(x[i] * factor) : 0.0f;
      codes[i] = static_cast<std::int8_t>(std::clamp(code, -127.0f, 127.0f));
    }
  }
}

void widen_rows(const float *scales, const std::int8_t *codes, std::int64_t rows, std::int64_t width, float *x) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) *x++ = static_cast<float>(*codes++) * scales[row];
  }
}

std::string said(std::int64_t adapter) {
  return adapter == 0 ? "no adapter" : "adapter " + std::to_string(adapter);
}

// A description as it is read.
class Words {
 public:
  Words(std::string_view text, const std::string &path) : left_(text), path_(path) {}

  std::int64_t integer(const char *name, std::int64_t least, std::int64_t most) {
    const auto value = static_cast<std::int64_t>(word_at(take(name, 1, kWord)));
    if (value < least || value > most) damaged(name);
    return value;
  }
  std::uint64_t word(const char *name) { return word_at(take(name, 1, kWord)); }

  std::string text(const char *name, std::uint64_t most) {
    const std::uint64_t size = word(name);
    if (size > most) damaged(name);
    return {take(name, size, 1), static_cast<std::size_t>(size)};
  }

  std::vector<std::int64_t> integers(const char *name, std::int64_t least, std::int64_t most) {
    const std::uint64_t count = word(name);
    const char *at = take(name, count, kWord);
    std::vector<std::int64_t> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::int64_t>(word_at(at + i * kWord));
      if (out[i] < least || out[i] > most) damaged(name);
    }
    return out;
  }

  void end() const {
    if (!left_.empty()) damaged("more than it should hold");
  }

 private:
  [[noreturn]] void damaged(const char *name) const {
    fail(EK_MALFORMED_FILE, path_, ": is damaged: ", name, " cannot be what it says; encode the text again");
  }

  const char *take(const char *name, std::uint64_t count, std::size_t width) {
    if (count > left_.size() / width) damaged(name);
    const char *at = left_.data();
    left_.remove_prefix(static_cast<std::size_t>(count) * width);
    return at;
  }

  std::string_view left_;
  const std::string &path_;
};

// Where rows at..at+count of what was appended piece by piece lie; they may lie in several.
template <typename Body>
void over_pieces(const std::vector<KeyPiece> &pieces, std::int64_t at, std::int64_t count, const Body &body) {
  std::int64_t before = 0;
  for (const KeyPiece &piece : pieces) {
    const std::int64_t rows = piece.keys.shape[2];
    const std::int64_t from = std::max(at, before), to = std::min(at + count, before + rows);
    if (from < to) body(piece, from - before, from - at, to - from);
    before += rows;
  }
}

}  // namespace

void SavedSequence::damaged(const char *what) const {
  fail(EK_MALFORMED_FILE, path(), ": is damaged: ", what, "; encode the text again");
}

std::uint64_t SavedSequence::block_bytes(const Layer &layer, std::int64_t rows) const {
  const auto heads = static_cast<std::uint64_t>(2 * layer.shape.kv_heads * rows);
  const auto width = static_cast<std::uint64_t>(layer.shape.head_dim);
  return bits_ == 8 ? heads * (sizeof(float) + width) : heads * width * sizeof(float);
}

std::uint64_t SavedSequence::run_bytes(const Layer &layer) const { return block_bytes(layer, layer.rows); }

std::string SavedSequence::start(std::uint64_t file_bytes) const {
  std::string description;
  put(description, std::string_view(bundle_));
  put(description, std::string_view(engine_));
  put(description, adapter_);
  put(description, std::int64_t{bits_});
  put(description, static_cast<std::int64_t>(ids_.size()));
  put(description, static_cast<std::int64_t>(layers_.size()));
  for (const Layer &layer : layers_) {
    for (const std::int64_t value : {layer.shape.kv_heads, layer.shape.head_dim, layer.shape.window, layer.rows, layer.block_rows})
      put(description, value);
    put(description, layer.xxh3);
  }
  put(description, pieces_);
  put(description, ids_);
  put(description, uncached_);
  put(description, std::string_view(note_));
  std::string out(kMagic);
  put(out, kVersion);
  put(out, file_bytes);
  put(out, std::uint64_t{description.size()});
  put(out, xxh3_64(description.data(), description.size()));
  put(out, std::uint64_t{0});
  put(out, xxh3_64(out.data(), out.size()));
  return out + description;
}

void SavedSequence::save(const Session &session, const Sequence &sequence, const std::string &path,
                         const SaveOptions &options) {
  const Session::Implementation &own = session.implementation();
  if (options.bits != 32 && options.bits != 8) {
    fail(EK_INVALID_ARGUMENT, "keys and values of ", options.bits, " bits; they can be saved with 32 or 8");
  }
  if (options.note.size() > EK_NOTE_MOST) {
    fail(EK_INVALID_ARGUMENT, "a note of ", options.note.size(), " bytes; it can have ", EK_NOTE_MOST);
  }
  const std::int64_t length = sequence.prefix_length();
  const KeptText &text = sequence.kept_text();
  text.require(length);
  SavedSequence out;
  out.bundle_ = own.bundle.digest();
  out.engine_ = own.engine->numerics().substr(0, kMostName);
  out.bits_ = options.bits;
  out.adapter_ = own.options.adapter;
  out.ids_ = text.ids(length);
  out.pieces_ = text.pieces(length);
  out.uncached_ = sequence.uncached();
  out.note_ = std::string(options.note);
  const std::vector<KvGeometry> &shapes = own.kept_memory->layers;
  for (std::size_t i = 0; own.model().causal_prefix && i < shapes.size(); ++i) {
    out.layers_.push_back({shapes[i], length - sequence.kept_.first(i), rows_of_block(shapes[i]), 0});
  }
  NewFile file(path);
  std::string start = out.start(0);
  const std::string zeros(start.size(), '\0');
  file.write(zeros.data(), zeros.size());
  std::uint64_t bytes = start.size();
  std::vector<float> staged;
  std::vector<std::uint8_t> packed;
  EngineMemory &memory = *own.kept_memory->memory;
  for (std::size_t i = 0; i < out.layers_.size(); ++i) {
    Layer &layer = out.layers_[i];
    const KvGeometry &shape = layer.shape;
    std::vector<KeyPiece> pieces;
    sequence.kept_.append_pieces(i, length - layer.rows, length, pieces);
    Xxh3 sum;
    for (std::int64_t done = 0; done < layer.rows; done += layer.block_rows) {
      const std::int64_t rows = std::min(layer.block_rows, layer.rows - done), heads = 2 * shape.kv_heads;
      const std::int64_t size = heads * rows * shape.head_dim;
      staged.resize(static_cast<std::size_t>(size));
      over_pieces(pieces, done, rows, [&](const KeyPiece &piece, std::int64_t from, std::int64_t to, std::int64_t count) {
        std::vector<FloatCopy> made = copies(piece, shape, from, count, nullptr, true);
        for (std::size_t head = 0; head < made.size(); ++head) {
          made[head].to = staged.data() + (static_cast<std::int64_t>(head) * rows + to) * shape.head_dim;
        }
        memory.copy(made);
      });
      memory.finish();
      const void *data = staged.data();
      if (out.bits_ == 8) {
        packed.resize(static_cast<std::size_t>(out.block_bytes(layer, rows)));
        std::vector<float> scales(static_cast<std::size_t>(heads * rows));
        auto *codes = reinterpret_cast<std::int8_t *>(packed.data() + scales.size() * sizeof(float));
        round_rows(staged.data(), heads * rows, shape.head_dim, scales.data(), codes);
        std::memcpy(packed.data(), scales.data(), scales.size() * sizeof(float));
        data = packed.data();
      }
      const auto count = static_cast<std::size_t>(out.block_bytes(layer, rows));
      sum.update(data, count);
      file.write(data, count);
      bytes += count;
    }
    layer.xxh3 = sum.digest();
  }
  start = out.start(bytes);
  file.replace_start(start.data(), start.size());
  file.finish();
}

SavedSequence::SavedSequence(const std::string &path)
    : file_(std::make_unique<BlockFile>(path, SystemFile::open(path), false)) {
  const auto other = [&] {
    fail(EK_MALFORMED_FILE, path, ": is no saved sequence; give a file that Chat.save, or /save NAME.kv, has written");
  };
  char start[kStart];
  if (file_->size() < kMagic.size()) other();
  file_->read(start, std::min<std::uint64_t>(kStart, file_->size()), 0, true);
  if (std::string_view(start, kMagic.size()) != kMagic) other();
  const auto cut = [&](std::uint64_t needed) {
    fail(EK_TRUNCATED_FILE, path, ": has ", file_->size(), " bytes of ", needed, "; encode the text again");
  };
  if (file_->size() < kStart) cut(kStart);
  const auto word = [&](std::size_t number) { return word_at(start + kMagic.size() + number * kWord); };
  if (word(0) != kVersion && word(5) == xxh3_64(start, kStart - kWord)) {
    fail(EK_UNSUPPORTED_VERSION, path, ": has version ", word(0), " of saved sequences, this library reads ", kVersion,
         "; use the version of edgekit that saved it");
  }
  const auto changed = [&] {
    fail(EK_CHECKSUM_MISMATCH, path, ": is not as it was written; encode the text again");
  };
  if (word(5) != xxh3_64(start, kStart - kWord)) changed();
  const std::uint64_t bytes = word(1), described = word(2);
  if (file_->size() < bytes) cut(bytes);
  if (file_->size() > bytes) damaged("more follows its end");
  // Ids and pieces of as many positions as a session takes at most, and the note.
  constexpr std::uint64_t kMostDescribed = EK_NOTE_MOST + std::uint64_t{3} * kWord * kMaxPositions + (1 << 20);
  if (described > bytes - kStart || described > kMostDescribed) damaged("the size of its description");
  // In parts before it is taken into memory: a size that storage has made of another is no reason to take that much.
  Xxh3 sum;
  std::vector<char> part(std::size_t{1} << 16);
  for (std::uint64_t done = 0; done < described; done += part.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(part.size(), described - done);
    file_->read(part.data(), count, kStart + done, true);
    sum.update(part.data(), static_cast<std::size_t>(count));
  }
  if (sum.digest() != word(3)) changed();
  std::string text(static_cast<std::size_t>(described), '\0');
  file_->read(text.data(), described, kStart, true);
  runs_ = kStart + described;
  describe(text);
}

void SavedSequence::describe(std::string_view text) {
  Words words(text, path());
  bundle_ = words.text("the bundle", kMostName);
  engine_ = words.text("the engine", kMostName);
  adapter_ = words.integer("an adapter", 0, kMostAdapters);
  bits_ = static_cast<int>(words.integer("a number of bits", 8, 32));
  if (bits_ != 8 && bits_ != 32) damaged("a number of bits");
  const std::int64_t length = words.integer("a number of positions", 0, kMaxPositions);
  const std::int64_t layers = words.integer("a number of layers", 0, kMostLayers);
  std::uint64_t left = file_->size() - runs_;
  for (std::int64_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.shape.kv_heads = words.integer("a number of heads", 0, kMostHeads);
    layer.shape.head_dim = words.integer("the size of a head", 0, kMostWidth);
    layer.shape.window = words.integer("a window", 0, kMaxPositions);
    layer.rows = words.integer("a number of rows", 0, length);
    layer.block_rows = words.integer("the rows of a block", 1, kMaxPositions);
    layer.xxh3 = words.word("a checksum");
    const std::int64_t needed = layer.shape.window == 0 ? length : std::min(length, layer.shape.window - 1);
    if (layer.rows < needed) damaged("a number of rows");
    if (layer.block_rows > rows_of_block(layer.shape)) damaged("the rows of a block");
    if (run_bytes(layer) > left) damaged("the size of a layer");
    left -= run_bytes(layer);
    layers_.push_back(layer);
  }
  if (left != 0) damaged("the size of its layers");
  pieces_ = words.integers("the pieces of the text", 1, kMaxPositions);
  ids_ = words.integers("the text", 0, kMostVocabulary);
  uncached_ = words.integers("text that is not encoded", 0, kMostVocabulary);
  note_ = words.text("the note", EK_NOTE_MOST);
  words.end();
  std::int64_t sum = 0;
  for (const std::int64_t piece : pieces_) sum = std::min(sum + piece, 2 * kMaxPositions);
  if (sum != length || static_cast<std::int64_t>(ids_.size()) != length) damaged("the pieces of the text");
}

void SavedSequence::check(const Session &session) const {
  const Session::Implementation &own = session.implementation();
  if (bundle_ != own.bundle.digest()) {
    fail(EK_INVALID_ARGUMENT, path(), ": belongs to another bundle, whose manifest has sha256 ", bundle_, ", not to ",
         own.bundle.path(), "; load it with the bundle that it was saved with");
  }
  const std::string engine = own.engine->numerics();
  if (engine_ != engine) {
    fail(EK_INVALID_ARGUMENT, path(), ": holds keys and values of the ", engine_, " engine, and this session runs ", engine,
         ", which computes others; encode the text again");
  }
  if (adapter_ != own.options.adapter) {
    fail(EK_INVALID_ARGUMENT, path(), ": holds keys and values that were computed with ", said(adapter_),
         ", and this session computes with ", said(own.options.adapter), "; open it with that one, or encode the text again");
  }
  const std::vector<KvGeometry> &shapes = own.kept_memory->layers;
  bool fits = layers_.size() == (own.model().causal_prefix ? shapes.size() : 0);
  for (std::size_t i = 0; fits && i < layers_.size(); ++i) {
    const KvGeometry &shape = layers_[i].shape;
    fits = shape.kv_heads == shapes[i].kv_heads && shape.head_dim == shapes[i].head_dim && shape.window == shapes[i].window;
  }
  const auto known = [&](std::int64_t id) { return id < own.model().vocabulary; };
  fits = fits && (own.model().causal_prefix || (ids_.empty() && uncached_.empty()));
  if (!fits || !std::all_of(ids_.begin(), ids_.end(), known) || !std::all_of(uncached_.begin(), uncached_.end(), known)) {
    damaged("it does not fit the bundle that it says it is of");
  }
}

// Of the rows of a run the last `kept` go to `to`.
void SavedSequence::load_layer(const Layer &layer, std::uint64_t offset, EngineMemory &memory, const KeyPiece &to,
                               std::int64_t kept) {
  const KvGeometry &shape = layer.shape;
  const std::int64_t heads = 2 * shape.kv_heads, before = layer.rows - kept;
  std::vector<std::uint8_t> bytes;
  std::vector<float> staged;
  Xxh3 sum;
  for (std::int64_t done = 0; done < layer.rows; done += layer.block_rows) {
    const std::int64_t rows = std::min(layer.block_rows, layer.rows - done);
    bytes.resize(static_cast<std::size_t>(block_bytes(layer, rows)));
    file_->read(bytes.data(), bytes.size(), offset, false);
    sum.update(bytes.data(), bytes.size());
    offset += bytes.size();
    const std::int64_t skipped = std::clamp<std::int64_t>(before - done, 0, rows), count = rows - skipped;
    if (count == 0) continue;
    staged.resize(static_cast<std::size_t>(heads * rows * shape.head_dim));
    if (bits_ == 8) {
      std::vector<float> scales(static_cast<std::size_t>(heads * rows));
      std::memcpy(scales.data(), bytes.data(), scales.size() * sizeof(float));
      const auto *codes = reinterpret_cast<const std::int8_t *>(bytes.data() + scales.size() * sizeof(float));
      widen_rows(scales.data(), codes, heads * rows, shape.head_dim, staged.data());
    } else {
      std::memcpy(staged.data(), bytes.data(), bytes.size());
    }
    std::vector<FloatCopy> made = copies(to, shape, done + skipped - before, count, staged.data(), false);
    for (std::size_t head = 0; head < made.size(); ++head) {
      made[head].from = staged.data() + (static_cast<std::int64_t>(head) * rows + skipped) * shape.head_dim;
    }
    memory.copy(made);
    memory.finish();
  }
  if (sum.digest() != layer.xxh3) {
    fail(EK_CHECKSUM_MISMATCH, path(), ": keys and values are not as they were written; encode the text again");
  }
}

void SavedSequence::load(Session &session, Sequence &sequence) {
  Session::Implementation &own = session.implementation();
  check(session);
  const auto length = static_cast<std::int64_t>(ids_.size());
  own.check_lengths(false, 0, length, 1);
  if (own.model().max_positions != 0 && length > own.model().max_positions) damaged("more positions than the model has");
  KeptRows &kept = sequence.kept_;
  sequence.reset();
  sequence.keep({});
  sequence.last_rows_ = 0;
  if (length > 0) {
    std::vector<KeyPiece> places;
    std::vector<std::int64_t> rows;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      // Of a layer with a window no more than a session of these lengths keeps.
      const std::int64_t window = layers_[i].shape.window;
      rows.push_back(window == 0 ? layers_[i].rows : std::min(layers_[i].rows, window - 1 + own.kept_memory->chunk));
      bytes += KvChunk::bytes(layers_[i].shape, rows.back());
    }
    try {
      own.with_kv_room(bytes, [&] {
        places.clear();
        try {
          for (std::size_t i = 0; i < layers_.size(); ++i) places.push_back(kept.prepare(i, 0, rows[i]));
        } catch (...) {
          kept.abandon();
          throw;
        }
      });
      std::uint64_t offset = runs_;
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        load_layer(layers_[i], offset, *own.kept_memory->memory, places[i], rows[i]);
        offset += run_bytes(layers_[i]);
      }
      sequence.text_.reserve(length);
      kept.commit_last(length);
      std::int64_t at = 0;
      for (const std::int64_t piece : pieces_) {
        sequence.text_.kept(at, ids_.data() + at, piece, true);
        at += piece;
      }
    } catch (...) {
      kept.clear();
      throw;
    }
  }
  sequence.keep(uncached_);
}

}  // namespace edgekit
