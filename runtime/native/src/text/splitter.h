// How a tokenizer splits a text into words, which are encoded one by one.
#ifndef EDGEKIT_TEXT_SPLITTER_H
#define EDGEKIT_TEXT_SPLITTER_H

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "text/expression.h"
#include "text/normalizer.h"

namespace edgekit {

class Splitter {
 public:
  // Words, which point into the text that they are of, or into `made`.
  struct Words {
    std::vector<std::string_view> words;
    std::deque<std::string> made;
    std::size_t made_bytes = 0;
  };

  Splitter() = default;

  // Of a tokenizer.json: null, Split, Digits, Metaspace, ByteLevel at the end, or a Sequence of these.
  // Throws Error (EK_UNSUPPORTED_BUNDLE, EK_MALFORMED_FILE).
  explicit Splitter(const Json &table);

  // Whether words are encoded by their bytes.
  bool of_bytes() const noexcept { return of_bytes_; }

  // Whether something is put in front of the part alone that begins a text, and whether a text is split before that.
  bool marks_first() const noexcept { return marks_first_; }
  bool splits_before_first() const noexcept { return splits_before_first_; }

  // The words of `text`, a part of a text, behind those that are there. Nothing is put in front of one that goes on.
  // Throws Error (EK_UNSUPPORTED_BUNDLE) where they are longer than any tokenizer makes them, or an expression takes too
  // long.
  void split(std::string_view text, Place place, Words &out) const;

 private:
  enum class Behavior { isolated, removed, with_previous, with_next, contiguous };
  struct Step {
    bool splits = true;  // otherwise it puts something in front of a text
    std::string text;    // by which it splits, where there is no expression; or what is put in front
    // Of one that splits.
    std::shared_ptr<const Expression> expression;
    Behavior behavior = Behavior::isolated;
    bool inverse = false;
    // Of one that puts something in front.
    std::string blank;        // what stands in for a blank
    bool first_only = false;  // in front of the part alone that begins a text
  };
  struct Part {
    std::string_view text;
    bool matches;
  };

  void add(const Json &table);
  void add_split(const Json &table);
  void add_metaspace(const Json &table);
  void add_byte_level(const Json &table);
  static std::vector<Part> parts(const Step &step, std::string_view text);
  // `before`: the bytes of the text that `text` is a word of.
  static void apply(const Step &step, std::string_view text, Place place, std::size_t before, Words &out);

  std::vector<Step> steps_;
  bool of_bytes_ = false, marks_first_ = false, splits_before_first_ = false;
};

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_SPLITTER_H
