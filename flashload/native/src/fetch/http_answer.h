// What an HTTP server says before it gives bytes, compared with what it was asked for (RFC 9110, 14 and 15).
#ifndef EDGEKIT_HTTP_ANSWER_H
#define EDGEKIT_HTTP_ANSWER_H

#include <cstdint>
#include <string>
#include <string_view>

#include "fetch/byte_ranges.h"

namespace edgekit {

enum class HttpAnswer {
  part,     // the bytes that were asked for follow, or the first of them
  whole,    // the file follows from its beginning
  missing,  // there is no such file
  later,    // it may be asked again
  other,    // its file has not the size that the bundle lists
  never,    // it will not give it
};

struct HttpAnswerFound {
  HttpAnswer answer = HttpAnswer::later;
  std::string why;  // for people; empty for part and whole
};

// `asked`: what was asked for with a Range header, an empty range where the whole file was, without one. `size` is that of
// the file, 0 where it is not known. `content_range` is the header of that name, empty where there is none.
HttpAnswerFound read_http_answer(int status, std::string_view content_range, ByteRange asked, std::uint64_t size);

}  // namespace edgekit

#endif  // EDGEKIT_HTTP_ANSWER_H
