// What a sequence keeps, as a file: written and read in blocks of rows, so that neither takes memory for more than one.
//
//   16 bytes    "edgekit kv file\n"
//   6 words     version; bytes of the file; bytes of the description; XXH3 of it; 0; XXH3 of all before
//   description words and texts: bundle, engine, adapter, bits, positions, layers (heads, head size, window, rows, rows of a block,
//               XXH3 of its run), pieces, ids, uncached ids, note
//   runs        of the layers, block by block: keys of its rows [heads, rows, head size], then values, as float32; of 8 bits
//               the scales [2, heads, rows] as float32 and then the codes as int8
//
// Words are 64 bits, numbers in little endian. A file may come from anybody: everything that is read is held to its limits,
// and memory is taken for what the file really has.
#ifndef EDGEKIT_SESSION_SAVED_SEQUENCE_H
#define EDGEKIT_SESSION_SAVED_SEQUENCE_H

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "block_file.h"
#include "session/session_state.h"

namespace edgekit {

struct SaveOptions {
  int bits = 32;  // or 8
  std::string_view note;
};

class SavedSequence {
 public:
  // Throws Error: EK_INVALID_STATE for what is no text, EK_INVALID_ARGUMENT, EK_WRITE_FAILED, EK_ENGINE_FAILED.
  static void save(const Session &session, const Sequence &sequence, const std::string &path, const SaveOptions &options);

  // Reads the description. Throws Error: those of SystemFile::open and BlockFile::read, EK_MALFORMED_FILE,
  // EK_UNSUPPORTED_VERSION, EK_TRUNCATED_FILE, EK_CHECKSUM_MISMATCH.
  explicit SavedSequence(const std::string &path);

  // Has `sequence` keep it, in place of what it kept. Throws Error, see ek_sequence_load.
  void load(Session &session, Sequence &sequence);

  const std::string &bundle() const { return bundle_; }
  const std::string &engine() const { return engine_; }
  std::int64_t adapter() const { return adapter_; }
  int bits() const { return bits_; }
  const std::vector<std::int64_t> &ids() const { return ids_; }
  const std::vector<std::int64_t> &pieces() const { return pieces_; }
  const std::vector<std::int64_t> &uncached() const { return uncached_; }
  const std::string &note() const { return note_; }

 private:
  struct Layer {
    KvGeometry shape;
    std::int64_t rows = 0, block_rows = 1;
    std::uint64_t xxh3 = 0;
  };

  SavedSequence() = default;
  std::string start(std::uint64_t file_bytes) const;
  void describe(std::string_view text);
  void check(const Session &session) const;
  void load_layer(const Layer &layer, std::uint64_t offset, EngineMemory &memory, const KeyPiece &to, std::int64_t kept);
  std::uint64_t run_bytes(const Layer &layer) const;
  std::uint64_t block_bytes(const Layer &layer, std::int64_t rows) const;
  const std::string &path() const { return file_->path(); }
  [[noreturn]] void damaged(const char *what) const;

  std::unique_ptr<BlockFile> file_;
  std::uint64_t runs_ = 0;  // where they begin
  std::string bundle_, engine_, note_;
  std::int64_t adapter_ = 0;
  int bits_ = 32;
  std::vector<Layer> layers_;
  std::vector<std::int64_t> ids_, pieces_, uncached_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SAVED_SEQUENCE_H
