/* The C ABI of edgekit's native core. Compiles as C99 and as C++11.
 *
 * Rules that hold for every function:
 *  - Failure is an ek_status, never a sentinel value, an abort or a C++ exception.
 *  - Returned strings belong to the library, are constant, and live until it is unloaded: never free them.
 *    Variable text goes into a buffer that belongs to the caller, whose size is always passed with it.
 *  - Any thread may call any function at any time unless its comment says otherwise.
 *  - Text is UTF-8 and ends with a NUL, which every size counts.
 *  - fork() leaves a child without the threads of sessions and flash files that were opened before it. There every call
 *    on them is EK_INVALID_STATE, and closing them does nothing; what the child opens itself works. A child of a fork
 *    during a call on another thread may call nothing here, as POSIX says of every library with locks.
 */
#ifndef EDGEKIT_H
#define EDGEKIT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#  if defined(EK_BUILDING_CORE)
#    define EK_API __declspec(dllexport)
#  else
#    define EK_API __declspec(dllimport)
#  endif
#elif defined(__GNUC__)
#  define EK_API __attribute__((visibility("default")))
#else
#  define EK_API
#endif

#ifdef __cplusplus
#  define EK_NOEXCEPT noexcept
extern "C" {
#else
#  define EK_NOEXCEPT
#endif

/* Raised by one whenever a caller built against the previous header could misbehave: a changed signature,
 * struct layout or status meaning. New functions and new status codes leave it alone. */
#define EK_ABI_VERSION 3u

/* An integer type of fixed width rather than an enum, whose width the C standard leaves to the compiler. */
typedef int32_t ek_status;

#define EK_OK ((ek_status)0)
#define EK_INVALID_ARGUMENT ((ek_status)1) /* an argument that no call may pass, such as a null buffer */
#define EK_BUFFER_TOO_SMALL ((ek_status)2) /* call again with a larger buffer */
#define EK_OUT_OF_MEMORY ((ek_status)3)    /* the system gave no memory */
#define EK_OPEN_FAILED ((ek_status)4)      /* a file cannot be opened */
#define EK_READ_FAILED ((ek_status)5)      /* the system reported an error while reading */
#define EK_TRUNCATED_FILE ((ek_status)6)   /* a file is shorter than it says */
#define EK_FILE_CHANGED ((ek_status)7)     /* a file was replaced or written while it was open */
#define EK_CHECKSUM_MISMATCH ((ek_status)8) /* bytes of a file are not those that were written */
#define EK_MALFORMED_FILE ((ek_status)9)   /* a file breaks the rules of its format */
#define EK_UNSUPPORTED_VERSION ((ek_status)10) /* a file is of a version that this library does not read */
#define EK_UNSUPPORTED_BUNDLE ((ek_status)11)  /* a bundle asks for something that this library does not do */
#define EK_BUDGET_EXCEEDED ((ek_status)12) /* the memory budget is too small; the message says what is enough */
#define EK_NOT_FINITE ((ek_status)13)      /* scores are NaN or infinite: the weights are broken */
#define EK_STOPPED ((ek_status)14)         /* a callback asked to stop */
#define EK_INVALID_STATE ((ek_status)15)   /* a call that must come after another one, such as project before denoise */
#define EK_INTERNAL ((ek_status)16)        /* an error in the library: please report it */
#define EK_INVALID_PROMPT ((ek_status)17)  /* a prompt is empty, or holds a token that the model does not have */
#define EK_PROMPT_TOO_LONG ((ek_status)18) /* prompt and answer do not fit the model's positions */
#define EK_ENGINE_FAILED ((ek_status)19)   /* an engine outside the library failed, or gave what no engine may give */
#define EK_WRITE_FAILED ((ek_status)20)    /* a file cannot be written */
#define EK_FETCH_FAILED ((ek_status)21)    /* a source did not give what it was asked for */

/* The EK_ABI_VERSION that the loaded library was built with. Call it first: when it differs from the header's,
 * nothing else in this header may be called. */
EK_API uint32_t ek_abi_version(void) EK_NOEXCEPT;

/* The release of the library, such as "0.1.0". The library owns the string. */
EK_API const char *ek_version(void) EK_NOEXCEPT;

/* One line of English about a status. An unknown status gets a line too, never NULL. The library owns the string. */
EK_API const char *ek_status_message(ek_status status) EK_NOEXCEPT;

/* Large enough for every feature that a library with this EK_ABI_VERSION was built to report. */
#define EK_CPU_FEATURES_SIZE 256

/* Writes the names of the instruction set extensions that this process may use, separated by single spaces, into
 * `buffer`, which holds `size` bytes and belongs to the caller. A name is written only when the processor has the
 * extension and the operating system saves its registers. Names and their order:
 *   x86-64:  sse4_2 avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_int8 sha_ni
 *   AArch64: neon dotprod i8mm sve sha2
 *   others:  none, an empty string
 * amx_int8 still needs the process to ask Linux for its tile registers (arch_prctl) before the first tile
 * instruction.
 *
 * EK_OK; EK_INVALID_ARGUMENT when `buffer` is null or `size` is 0; EK_BUFFER_TOO_SMALL with an empty string in
 * `buffer` when the names do not fit: a list that is cut short would read like a lesser processor. */
EK_API ek_status ek_cpu_features(char *buffer, size_t size) EK_NOEXCEPT;

/* What went wrong in the last call on this thread that did not return EK_OK: one line of English for the user, with
 * the file, number or name concerned and what to do. Empty before the first failure. Only the functions below this
 * comment set it. The library owns the string; it lives until the next failing call on this thread. */
EK_API const char *ek_last_error(void) EK_NOEXCEPT;

/* After EK_BUDGET_EXCEEDED: a memory_bytes that would have been enough. 0 after any other failure. */
EK_API uint64_t ek_last_error_bytes(void) EK_NOEXCEPT;

/* After ek_session_pass has failed: the segment that was refused before anything was computed, so that a pass of the others
 * may be tried. -1 where it failed for another reason, and after any other failure. */
EK_API int64_t ek_last_error_segment(void) EK_NOEXCEPT;

/* ---- Sessions -------------------------------------------------------------------------------------------------
 *
 * A session is a bundle being run: it holds the weights that stay in memory, streams the others, and keeps the
 * keys and values of an encoded prefix. Its functions must not be called by two threads at the same time; different
 * sessions are independent of each other. Results do not depend on the number of threads, the memory budget or
 * what is resident.
 *
 * Structs that callers fill begin with their size, so that later versions can add members at the end: set
 * struct_size to sizeof the struct. A shorter struct than the library's is taken as if the missing members had
 * their defaults; a longer one is EK_INVALID_ARGUMENT where it is input, and keeps its unknown members as they are
 * where it is output.
 *
 * A null session is EK_INVALID_ARGUMENT everywhere but in ek_session_close, and so is a member `reserved` that is not
 * 0 in a struct that is input. "Those of reading" are EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED and
 * EK_CHECKSUM_MISMATCH. */

typedef struct ek_session ek_session;

typedef struct ek_session_options {
  uint32_t struct_size;
  int32_t threads;         /* that compute, the caller's included; 0: one per core that the process may use */
  uint64_t memory_bytes;   /* bounds the physical memory of the whole process; 0: all resident, if it fits */
  uint64_t resident_bytes; /* bounds the weights that stay in memory further; UINT64_MAX: no further limit */
  int64_t positions;       /* the longest encoded prefix that memory_bytes must hold; for a generation beyond this, canvas or
                              cached ek_generate plans again, with fewer weights in memory */
  int64_t canvas;          /* the longest canvas that memory_bytes must hold */
  int64_t sequences;       /* how many may be open, and how many segments of these lengths a pass may have, for
                              memory_bytes to hold; at least 1 */
  int64_t segments;        /* of a pass, where it may have more than that; 0: it may not */
  int64_t cached;          /* positions of a canvas whose keys and values passes keep, for memory_bytes to hold; of models that
                              encode no prefix */
  int64_t adapter;         /* that rows are computed with where nothing else says it: in all but ek_session_pass, see
                              ek_pass_segment; 0: none */
} ek_session_options;

/* The defaults, which a null pointer stands for. */
#define EK_SESSION_OPTIONS_INIT {sizeof(ek_session_options), 0, 0, UINT64_MAX, 2048, 256, 1, 0, 0, 0}

/* Opens the bundle in folder `bundle` (UTF-8), reads the weights that stay in memory and starts threads. `*session`
 * is null after a failure; otherwise it belongs to the caller, who gives it to ek_session_close.
 * EK_INVALID_ARGUMENT, EK_OPEN_FAILED, EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED, EK_CHECKSUM_MISMATCH,
 * EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION, EK_UNSUPPORTED_BUNDLE, EK_BUDGET_EXCEEDED, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_open(const char *bundle, const ek_session_options *options,
                                 ek_session **session) EK_NOEXCEPT;

/* Ends a session; null is allowed. No other call on it may follow. While another one is under way, as where an engine or a
 * callback calls this, the session ends with that call. */
EK_API void ek_session_close(ek_session *session) EK_NOEXCEPT;

typedef struct ek_session_info {
  uint32_t struct_size;
  int32_t threads;
  int64_t vocabulary;    /* tokens; ids are 0..vocabulary-1 */
  int64_t hidden_size;   /* width of a soft embedding */
  int64_t prefix_length; /* positions that are encoded now */
  /* What the memory budget holds besides weights, in bytes: what the process held when it was last
   * planned, encoded prefix, arrays between layers, arrays within layers, vocabulary head, and a margin. */
  uint64_t process_bytes, prefix_bytes, activation_bytes, scratch_bytes, head_bytes, allowance_bytes;
  int64_t canvas_length; /* of the model; 0: it takes canvases of any length */
  int64_t max_positions; /* that the model was made for, prompt and answer together; 0: unknown */
  int32_t causal_prefix; /* not 0: committed text is encoded causally and kept; 0: all of it stands on the canvas */
  int32_t role_head;     /* not 0: it tells the logical roles of positions, see ek_head_request.roles */
  int64_t uncached_length; /* tokens behind the prefix that ek_generate has left to be encoded */
  int64_t prefill_rows;  /* positions that are encoded at once: a longer text takes several passes */
  int64_t prefix_block;  /* of encoded text, rows that see each other, counted from where each call began to encode; 1:
                            it is causal */
} ek_session_info;

/* Fills *info up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_session_get_info(ek_session *session, ek_session_info *info) EK_NOEXCEPT;

/* Forgets all text: the encoded prefix, and what is uncached. Like ek_session_idle it may read: where passes have used
 * streamed experts more often than some that stay in memory, they may change places. An expert that cannot be read for
 * that stays where it is; results and the memory in use stay the same anyway. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_reset(ek_session *session) EK_NOEXCEPT;

/* Tells that no pass follows soon: stops reading ahead, and may change which experts stay in memory, as
 * ek_session_reset does. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_idle(ek_session *session) EK_NOEXCEPT;

/* Bounds the weights that stay in memory further, for where it has run low: from the next pass or ek_session_idle on at
 * most `bytes` of them stay, and the others are read in every step. Results, the encoded prefix and a generation under
 * way stay as they are. What was given back does not come again while the session is open. Any thread may call it at any
 * time, during another call too, but not during ek_session_close. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_session_limit_resident(ek_session *session, uint64_t bytes) EK_NOEXCEPT;

/* Encodes `count` token ids, 0 or more, behind the prefix, and keeps their keys and values: causally, or in blocks of
 * prefix_block rows. What ek_generate has left uncached goes before them. Only for models that encode committed text; others: EK_INVALID_STATE. After a
 * failure other than EK_INVALID_ARGUMENT, EK_INVALID_STATE and EK_BUDGET_EXCEEDED the whole prefix is forgotten, and
 * after EK_BUDGET_EXCEEDED where passes before it had encoded a part of them. Those of reading, and EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_prefill(ek_session *session, const int64_t *ids, int64_t count) EK_NOEXCEPT;

/* What to compute from the scores z = logits / temperature of the positions on the canvas. A memory budget holds for
 * as many rows as the `canvas` that the session was opened for has positions, and for top_k up to 256. */
typedef struct ek_head_request {
  uint32_t struct_size;
  float temperature;   /* above 0 */
  const int64_t *rows; /* positions to look at, in the order of the results, repeated ones allowed; null: all */
  int64_t row_count;   /* entries of rows; where rows is null 0, or the number that the pass must have, since the
                          arrays of the answer have room for no more: of another one EK_INVALID_ARGUMENT */
  int32_t gumbel;      /* not 0: sample from softmax(z / gumbel_scale) by adding noise (`seed`, `draw`) */
  float gumbel_scale;  /* at least 0 */
  uint64_t seed, draw; /* the noise is a function of these two, row and token: runtime/sampling/noise.py */
  int32_t soft;        /* not 0: the expected embedding softmax(z) @ table, for self-conditioning */
  int32_t roles;       /* not 0: scores of the logical roles of the tokens that the rows predict; a bundle without a role
                          head: EK_INVALID_ARGUMENT */
  int64_t top_k;       /* the largest scores of every row; 0: none; more than the vocabulary: all */
} ek_head_request;

#define EK_HEAD_REQUEST_INIT {sizeof(ek_head_request), 1.0f, NULL, 0, 0, 1.0f, 0, 0, 0, 0, 0}

/* Logical roles, in the order in which the option order=logic commits them (LogicDiff, arXiv 2603.26771). */
#define EK_ROLES 5
#define EK_ROLE_PREMISE 0
#define EK_ROLE_CONNECTIVE 1
#define EK_ROLE_DERIVED 2
#define EK_ROLE_CONCLUSION 3
#define EK_ROLE_FILLER 4

/* Arrays of the caller for R rows: row_count, or the length of the canvas. Null where something is not wanted; an
 * array that the request does not ask for is EK_INVALID_ARGUMENT. Ties go to the lower token. */
typedef struct ek_head_output {
  uint32_t struct_size;
  uint32_t reserved;    /* 0 */
  int64_t *argmax;      /* [R] */
  float *others;        /* [R] sum of exp(z - max z) over all other tokens: softmax(z) there is 1 / (1 + others) */
  float *entropy;       /* [R] of softmax(z), in nats */
  float *log_z;         /* [R] log of the sum of exp(z) */
  int64_t *sample;      /* [R]; needs `gumbel` */
  float *sample_prob;   /* [R] softmax(z) at the sample; needs `gumbel` */
  float *soft;          /* [R, hidden_size]; needs `soft` */
  int64_t *top_ids;     /* [R, k] by descending score, k = min(top_k, vocabulary); needs `top_k` */
  float *top_z;         /* [R, k]; needs `top_k` */
  float *logits;        /* [R, vocabulary]: all of z */
  float *roles;         /* [R, EK_ROLES] scores of EK_ROLE_...: the largest is the likeliest; needs `roles` */
} ek_head_output;

#define EK_HEAD_OUTPUT_INIT {sizeof(ek_head_output), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* One bidirectional pass of `count` token ids behind the encoded prefix, and the vocabulary head on the requested
 * rows. `soft` [count, hidden_size] is what the last step gave as output->soft, finite numbers, or null; models without
 * self-conditioning ignore it. A null request stands for EK_HEAD_REQUEST_INIT, a null output for EK_HEAD_OUTPUT_INIT.
 * Scores that are not finite are no failure here: they show in log_z. After a failure the outputs hold no particular
 * values, and the session can be used on. EK_INVALID_ARGUMENT, EK_BUDGET_EXCEEDED for a canvas beyond what the budget
 * was planned for, those of reading, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_denoise(ek_session *session, const int64_t *ids, int64_t count, const float *soft,
                                    const ek_head_request *request, const ek_head_output *output) EK_NOEXCEPT;

/* What the last ek_session_denoise would have given to this request, without its layers; the passes of ek_generate
 * count as such. EK_INVALID_STATE before the first, and after one that failed once its arguments were accepted; else
 * as there. */
EK_API ek_status ek_session_project(ek_session *session, const ek_head_request *request,
                                    const ek_head_output *output) EK_NOEXCEPT;

/* ---- Sequences and passes -------------------------------------------------------------------------------------
 *
 * What a pass over streamed weights costs is reading them, so several texts may share one: requests of a server, branches
 * of a search, the draft of a block beside the verification of the one before. A sequence is such a text: the keys and
 * values that are kept of it, what is uncached, and the hidden states of its last pass. Every session has one of its own,
 * which the functions above use. A sequence gives the same results alone and in company.
 *
 * Sequences belong to their session: functions of both must not be called by two threads at the same time, and sequences
 * must be closed before the session. A null sequence is the session's own; ek_sequence_close leaves that one alone. */

typedef struct ek_sequence ek_sequence;

/* A sequence without text. `*sequence` belongs to the caller, who gives it to ek_sequence_close; it is null after a failure.
 * EK_INVALID_ARGUMENT, EK_BUDGET_EXCEEDED for more than the `sequences` that a memory budget was planned for, the
 * session's own counted, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sequence_open(ek_session *session, ek_sequence **sequence) EK_NOEXCEPT;

/* A copy of a sequence, or of the session's own where `original` is null. The two share what is kept until they go on
 * differently. Fails as ek_sequence_open does. */
EK_API ek_status ek_sequence_copy(ek_session *session, ek_sequence *original, ek_sequence **copy) EK_NOEXCEPT;

/* Ends it; null is allowed. While a call on its session is under way it ends with that call. */
EK_API void ek_sequence_close(ek_sequence *sequence) EK_NOEXCEPT;

/* ek_session_prefill for any sequence; null is the session's own. */
EK_API ek_status ek_sequence_prefill(ek_session *session, ek_sequence *sequence, const int64_t *ids,
                                     int64_t count) EK_NOEXCEPT;

/* EK_OK where ek_sequence_prefill would take these ids, else what it would say of them. Encodes nothing: who encodes a text
 * in several passes asks about all of it first. */
EK_API ek_status ek_sequence_check_prefill(ek_session *session, ek_sequence *sequence, const int64_t *ids,
                                           int64_t count) EK_NOEXCEPT;

/* Forgets what is kept at and behind position `length`, and what is uncached; 0 forgets all. Null is the session's own
 * sequence. EK_INVALID_ARGUMENT for more than is kept; EK_INVALID_STATE where layers with a sliding window no longer have
 * what precedes that position: of what was kept, the last canvas (256 positions for models without a canvas length) can
 * always be taken back. */
EK_API ek_status ek_sequence_crop(ek_session *session, ek_sequence *sequence, int64_t length) EK_NOEXCEPT;

/* Says which text behind what is kept is final and not encoded, as EK_ASK_COMMITTED tells it; count 0: none.
 * EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sequence_keep(ek_session *session, ek_sequence *sequence, const int64_t *ids,
                                  int64_t count) EK_NOEXCEPT;

typedef struct ek_sequence_info {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t prefix_length;   /* positions that are kept */
  int64_t uncached_length; /* tokens behind them that are final and not encoded */
  int64_t last_rows;       /* rows that a segment without ids can ask for: of the last segment with a request */
  uint64_t last_pass;      /* a number for the pass of that segment, which no other pass of this process has; 0: none */
  uint64_t text;           /* a number for the text whose encoding is kept, the same for equal ones; 1: what is kept is no
                              text, such as a canvas */
} ek_sequence_info;

/* Fills *info up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_sequence_get_info(ek_session *session, ek_sequence *sequence, ek_sequence_info *info) EK_NOEXCEPT;

/* The token ids behind what a sequence keeps, and the lengths of the pieces in which they were encoded: who encodes the same
 * pieces has the same keys and values, to the bit. `ids` has room for `id_capacity`, the sequence's prefix_length or more, and
 * `piece_lengths`, which may be null, for `piece_capacity`; *pieces becomes their number. EK_BUFFER_TOO_SMALL;
 * EK_INVALID_STATE where passes have kept what no encoding of a text gives: the message says from where on. */
EK_API ek_status ek_sequence_get_text(ek_session *session, ek_sequence *sequence, int64_t *ids, int64_t id_capacity,
                                      int64_t *piece_lengths, int64_t piece_capacity, int64_t *pieces) EK_NOEXCEPT;
/* What a sequence keeps, in a file: keys, values, the text that they are of, and what is uncached behind it. It belongs to
 * the bundle and to the engine that computed it. */
typedef struct ek_save_options {
  uint32_t struct_size;
  int32_t bits;         /* of keys and values: 32, as they are; or 8, a quarter of that, rounded for each position and head to
                           its largest number / 127: what is computed behind them is then near to what it was */
  const void *note;     /* what the caller wants to find in it again; may be null */
  uint64_t note_bytes;  /* at most EK_NOTE_MOST */
} ek_save_options;

#define EK_SAVE_OPTIONS_INIT {sizeof(ek_save_options), 32, NULL, 0}
#define EK_NOTE_MOST ((uint64_t)16 << 20)

/* Writes what a sequence, null being the session's own, keeps and what is uncached to `path`, under another name until it is
 * whole; what was there is replaced. Null options are the defaults. A model without a causal prefix keeps nothing: its file
 * has the note. EK_INVALID_STATE where what is kept is no text, such as a canvas; EK_WRITE_FAILED, EK_INVALID_ARGUMENT,
 * EK_OUT_OF_MEMORY, EK_ENGINE_FAILED. */
EK_API ek_status ek_sequence_save(ek_session *session, ek_sequence *sequence, const char *path,
                                  const ek_save_options *options) EK_NOEXCEPT;

/* Has a sequence, null being the session's own, keep what a file holds, in place of what it kept, as if its text had been
 * encoded in the same pieces. The file may come from anybody. EK_INVALID_ARGUMENT for one of another bundle or engine;
 * EK_BUDGET_EXCEEDED for more positions than the budget was planned for; those of ek_saved_open, EK_OUT_OF_MEMORY,
 * EK_ENGINE_FAILED. The sequence keeps nothing after a failure behind the file's description. */
EK_API ek_status ek_sequence_load(ek_session *session, ek_sequence *sequence, const char *path) EK_NOEXCEPT;

/* What such a file says of itself, which is read and checked; keys and values are when they are loaded. */
typedef struct ek_saved ek_saved;

typedef struct ek_saved_info {
  uint32_t struct_size;
  int32_t bits;
  const char *bundle;       /* how its manifest begins: the 64 digits of "sha256" */
  const char *engine;       /* these belong to the ek_saved */
  const int64_t *ids;       /* [count] tokens that are encoded */
  int64_t count;
  const int64_t *pieces;    /* [piece_count] how many of them were encoded at once */
  int64_t piece_count;
  const int64_t *uncached;  /* [uncached_count] */
  int64_t uncached_count;
  const void *note;
  uint64_t note_bytes;
  int64_t adapter;          /* that computed it, see ek_session_options; 0: none */
} ek_saved_info;

/* EK_OPEN_FAILED, EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED, EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION,
 * EK_CHECKSUM_MISMATCH, EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. `*saved` is for ek_saved_close; null after a failure. */
EK_API ek_status ek_saved_open(const char *path, ek_saved **saved) EK_NOEXCEPT;
EK_API ek_status ek_saved_get_info(ek_saved *saved, ek_saved_info *info) EK_NOEXCEPT;
EK_API void ek_saved_close(ek_saved *saved) EK_NOEXCEPT;

/* Rows that a segment sees before its own. */
typedef struct ek_seen_rows {
  int64_t segment;       /* -1: kept positions of its sequence; else an earlier segment of the pass */
  int64_t first, count;
} ek_seen_rows;

#define EK_KEEP_NOTHING ((int64_t)-1)

/* Rows of a pass that see the same. */
typedef struct ek_pass_segment {
  uint32_t struct_size;
  int32_t causal;            /* not 0: a row sees itself and what has no later position; 0: a canvas, whose rows all see
                                each other */
  ek_sequence *sequence;     /* null: the session's own */
  const int64_t *ids;        /* [count] token ids */
  int64_t count;             /* 0: no rows; `request` is answered from the hidden states of the last segment of the
                                sequence that had one, in a pass before this, as ek_session_project does */
  const int64_t *positions;  /* [count], below `max_positions`; null: one after the other, behind what is kept or from
                                keep_at. With keep_at any others are for models that encode no prefix and have no sliding
                                windows */
  const float *soft;         /* [count, hidden_size] for a canvas, as in ek_session_denoise, or null */
  const ek_seen_rows *seen;  /* [seen_count] in this order, no row twice; null: all that is kept, up to keep_at. A memory
                                budget holds for as many rows as the `positions` that the session was opened for. Layers
                                with a sliding window show what the segment's first row sees by position */
  int64_t seen_count;
  int64_t keep_at;           /* EK_KEEP_NOTHING; or the position from which on its keys and values are kept, in place of
                                those there: at most the number of kept positions */
  const ek_head_request *request; /* what the head is asked of its rows; null: nothing */
  const ek_head_output *output;   /* where the answer goes; null: nowhere */
  int64_t block;             /* of causal ones: so many rows see each other, counted from the first, and all that is not behind
                                them; 0 and 1: a row sees itself and what is not behind it */
  int64_t adapter;           /* of a bundle with a low-rank adapter beside its weights: 1 adds it to what its rows are
                                multiplied with; 0: as if there were none. A bundle without one takes 0 alone */
  int64_t keep_count;        /* with keep_at: of its rows, the first, whose keys and values are kept; 0: all */
} ek_pass_segment;

#define EK_PASS_SEGMENT_INIT \
  {sizeof(ek_pass_segment), 0, NULL, NULL, 0, NULL, NULL, NULL, 0, EK_KEEP_NOTHING, NULL, NULL, 0, 0, 0}

/* One pass over the weights for `count` segments: products look at all rows together, attention at what each segment sees. A
 * sequence keeps the rows of one of them at most, when all have been computed; while the pass runs, rows that replace
 * others count twice. After a failure every sequence keeps what it kept, outputs hold no particular values, and requests to
 * sequences of the pass need another pass before a segment without ids. EK_INVALID_ARGUMENT for what does not fit,
 * EK_INVALID_STATE where a segment without ids has no pass before it, a model that encodes no prefix is to keep rows or take
 * causal ones, or `keep_at` is too far back (see ek_sequence_crop); EK_BUDGET_EXCEEDED for lengths or numbers that the budget
 * was not planned for, those of reading, EK_OUT_OF_MEMORY, EK_ENGINE_FAILED (`copy` of ek_engine says what it may cost). */
EK_API ek_status ek_session_pass(ek_session *session, const ek_pass_segment *segments, int64_t count) EK_NOEXCEPT;

typedef struct ek_session_statistics {
  uint32_t struct_size;
  uint32_t reserved;
  const char *io_mode;              /* how the weights are read; the session owns it, until the next such call */
  uint64_t pinned_bytes;            /* weights that stay in memory */
  uint64_t ring_bytes;              /* memory for reading ahead */
  uint64_t streamed_bytes_per_step; /* weights that a step reads at most: experts without rows are skipped */
  uint64_t bytes_read;              /* streamed so far, exchanges included */
  uint64_t scratch_bytes;           /* memory for arrays within layers */
  double io_seconds;                /* at least one read was under way */
  double io_wait_seconds;           /* computation waited for one */
  double pass_seconds;              /* in prefill, denoise and project */
  uint64_t bytes_skipped;           /* of streamed experts that passes had no rows for and that were not read */
  uint64_t bytes_exchanged;         /* of streamed experts that took the place of others in memory */
  uint64_t expert_layers;           /* layers with experts that passes of denoising had, each as often */
  uint64_t experts_wanted;          /* experts with rows, in all of these */
  uint64_t experts_again;           /* of them, those that the same layer wanted in the pass before */
  int64_t prefill_passes, denoise_passes; /* that did not fail: of text alone, and with a canvas or a request */
  int64_t head_passes;              /* without rows: the vocabulary head once more */
  int64_t pass_rows;                /* positions that all these passes computed */
  double prefill_seconds, denoise_seconds; /* of pass_seconds, what passes took up to the last norm */
  double head_seconds;              /* last norm and vocabulary head; engines that work late are waited for here */
} ek_session_statistics;

/* Fills *statistics up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_session_get_statistics(ek_session *session, ek_session_statistics *statistics) EK_NOEXCEPT;

/* Physical memory of the process now, which memory_bytes of a session bounds; 0 where the system does not tell. */
EK_API uint64_t ek_process_bytes(void) EK_NOEXCEPT;

/* ---- Flash files ----------------------------------------------------------------------------------------------
 *
 * For programs that look into the weights of a bundle; engines are given them (ek_weights). They lie in a
 * safetensors file laid out in runs (flashload/format.py), read and verified as sessions do it. */

typedef struct ek_flash_file ek_flash_file;

/* Opens the flash file at `path` (UTF-8), reads its header alone and starts threads that read. `*file` is null after a
 * failure; otherwise it belongs to the caller, who gives it to ek_flash_close. Different threads may use it at the same
 * time. A null file is EK_INVALID_ARGUMENT everywhere but in ek_flash_close. EK_INVALID_ARGUMENT, EK_OPEN_FAILED,
 * EK_READ_FAILED, EK_TRUNCATED_FILE, EK_FILE_CHANGED, EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_flash_open(const char *path, ek_flash_file **file) EK_NOEXCEPT;

/* Closes it; null is allowed. No other call on it may be under way or follow. */
EK_API void ek_flash_close(ek_flash_file *file) EK_NOEXCEPT;

typedef struct ek_flash_info {
  uint32_t struct_size;
  int32_t packed;        /* not 0: another program reads the file too, and runs lie in parts, flashload/packed.py */
  const char *path;      /* as it was opened */
  const char *io_mode;   /* how runs are read: "direct io_uring", "buffered pread: the file system refuses ...", ... */
  const char *plan;      /* what the file was to hold, as its writer puts it (edgekit.plan); empty: it does not say */
  uint64_t bytes;        /* of the whole file */
  uint64_t header_bytes; /* before the first run */
  int64_t runs;
} ek_flash_info;

/* Fills *info up to its struct_size. What it points at belongs to the file and lives until it is closed.
 * EK_INVALID_ARGUMENT. */
EK_API ek_status ek_flash_get_info(ek_flash_file *file, ek_flash_info *info) EK_NOEXCEPT;

typedef struct ek_flash_run {
  uint32_t struct_size;
  uint32_t reserved;
  const char *name;
  uint64_t offset; /* in the file, of its first part */
  uint64_t bytes;  /* of memory, padding included */
  int64_t tensors, parts;
} ek_flash_run;

/* Fills *run, up to its struct_size, with the run number `index`, in the order of the file. The name belongs to the file
 * and lives until it is closed. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_flash_get_run(ek_flash_file *file, int64_t index, ek_flash_run *run) EK_NOEXCEPT;

typedef struct ek_flash_part {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t offset; /* in the file */
  uint64_t place;  /* in the run */
  uint64_t bytes;
  uint64_t xxh3;   /* of them, as the header says */
} ek_flash_part;

/* Fills *part, up to its struct_size, with part number `index` of a run: bytes that follow each other in the file. A run
 * of a file that is not packed has one. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_flash_get_part(ek_flash_file *file, const char *run, int64_t index,
                                   ek_flash_part *part) EK_NOEXCEPT;

/* The size of the run of that name, padding included, and how many tensors it holds; either pointer may be null.
 * EK_INVALID_ARGUMENT for a run that the file does not have. */
EK_API ek_status ek_flash_find_run(ek_flash_file *file, const char *run, uint64_t *bytes, int64_t *tensors) EK_NOEXCEPT;

typedef struct ek_flash_tensor {
  uint32_t struct_size;
  uint32_t rank;
  const char *name;       /* unique in its run: without the run's own name and a dot where it starts with them */
  const char *dtype;      /* as in safetensors: "U8", "F32", "BF16", ... */
  const int64_t *shape;   /* [rank], row-major */
  uint64_t offset, bytes; /* within the run */
} ek_flash_tensor;

/* Fills *tensor, up to its struct_size, with the tensor number `index` of a run. What it points at belongs to the file
 * and lives until it is closed. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_flash_get_tensor(ek_flash_file *file, const char *run, int64_t index,
                                     ek_flash_tensor *tensor) EK_NOEXCEPT;

/* The name of that tensor in the whole file: as its header has it, or in a packed file the run's name, a dot, and the
 * tensor's own. It belongs to the file and lives until it is closed. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_flash_get_tensor_name(ek_flash_file *file, const char *run, int64_t index,
                                          const char **name) EK_NOEXCEPT;

/* Reads a whole run into `buffer` of `size` bytes, at least those of the run: past the page cache where the buffer begins
 * at a page and the system allows it. A run is verified when it is first read, and again after the file was written to:
 * bytes that are not those that were exported are EK_CHECKSUM_MISMATCH. After a failure the buffer holds no particular
 * bytes. EK_INVALID_ARGUMENT, those of reading, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_flash_read_run(ek_flash_file *file, const char *run, void *buffer, uint64_t size) EK_NOEXCEPT;

/* Compares the bytes of a run with their digests, in a few MiB of memory. Counts as its first read. EK_INVALID_ARGUMENT,
 * those of reading, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_flash_verify_run(ek_flash_file *file, const char *run) EK_NOEXCEPT;

/* Copies `size` bytes from `offset` of a run through the page cache, for single rows of a table. They are not verified,
 * but exact in length. EK_INVALID_ARGUMENT for bytes that are not in one piece of the file, those of reading. */
EK_API ek_status ek_flash_read_part(ek_flash_file *file, const char *run, uint64_t offset, uint64_t size,
                                    void *out) EK_NOEXCEPT;

/* ---- Engines --------------------------------------------------------------------------------------------------
 *
 * An engine computes and nothing else: layers, the last norm, tiles of the vocabulary head. Everything around it is the
 * session's: what stays in memory and what streams, the prefix, rotary tables, masks, which experts are wanted, noise,
 * and the joining of the head's tiles. The native engine is part of the library. Another one, such as ONNX Runtime or MLX
 * in whatever language its system speaks, is a table of functions, given to ek_session_open_engine. What runs packages,
 * such as Core ML, is a smaller one: see ek_executor.
 *
 * Rules for its functions:
 *  - They are called on the thread that entered the library, while no lock is held, one at a time. They must not call
 *    functions of the session that calls them: those are EK_INVALID_STATE.
 *  - They return EK_ENGINE_DONE, EK_ENGINE_SUBMITTED where "Work under way" allows it, or anything else, such as 0, for a
 *    failure, which ends the pass with EK_ENGINE_FAILED. Exceptions must not leave them: whoever makes the table keeps
 *    them and raises them again once the session's call has failed.
 *  - What a call points at is valid until the function returns, and what it computes has been written by then, unless
 *    the call was submitted.
 *  - Arrays are float32, row-major and contiguous unless their comment says otherwise.
 *  - Results must be a function of what is given: not of addresses, of the number of threads, or of the order in which
 *    experts come.
 *
 * Memory of the engine's own, such as a GPU's: an engine with the functions `allocate`, `release` and `copy` has there
 * what passes leave for later calls. Those are x of all calls, `soft` of self_condition, and keys and values (ek_keys,
 * and k and v of ek_attention). The session counts them in its budget, adds to such addresses, and neither reads nor writes
 * there. Everything else is memory of the session: weights, tables, masks, and what a tile answers. Tables and masks are
 * made once for all steps on a canvas (see ek_layers_call.inputs), and answers are what samplers read.
 *
 * Work under way: an engine with memory of its own and with `wait` may return EK_ENGINE_SUBMITTED from layers, expert,
 * join, self_condition, final, tile and copy. The work is then done later, as if in the order of the calls: what it reads
 * is what earlier calls wrote, and the same holds for calls that are done at once. Only this stays in use until `wait`
 * has returned for the call: ek_weights.data, what a tile's results point at, and memory of the engine's own. Everything
 * else that the call points at must have been read when it returns, and so must what a copy takes from the session. A
 * failure that shows later is told by `wait`, or by any call before it.
 */

#define EK_ENGINE_DONE ((int32_t)1)
#define EK_ENGINE_SUBMITTED ((int32_t)2) /* under way */
#define EK_ENGINE_FULL ((int32_t)3)      /* of keep: it has no memory left */

/* Weights: a run of the flash file in memory (verified, aligned to 64 bytes, read-only), or a unit that the engine has
 * opened itself. */
typedef struct ek_weights {
  const char *unit;                /* the name of the run or package */
  const uint8_t *data;             /* null where the engine keeps it, or has opened it */
  uint64_t bytes;
  const ek_flash_tensor *tensors;  /* [tensor_count] what lies where in `data`; they belong to the session */
  int64_t tensor_count;
} ek_weights;

/* Keys and values of consecutive positions. Head h begins `stride` floats behind head h - 1. */
typedef struct ek_keys {
  const float *k, *v;  /* [kv_heads, count, head_dim] */
  int64_t count;
  int64_t stride;
} ek_keys;

/* One layer for one segment of rows. Head h of the segment's own keys begins `own_stride` floats behind head h - 1. */
typedef struct ek_attention {
  int64_t layer;                     /* number in the model */
  int64_t kv_heads, head_dim;
  int64_t window;                    /* 0: none */
  int64_t kept;                      /* rows that the segment sees before its own, in all pieces */
  int64_t piece_count;
  const ek_keys *pieces;             /* [piece_count] one behind the other; some may be rows of earlier segments */
  const float *cos, *sin;            /* [count, frequencies] */
  int64_t frequencies;
  const char *rope;                  /* the tables' name in the manifest */
  const float *query_scale;          /* [count] factors for rotated queries; null where the rope has none */
  const float *adapter;              /* [count] factors for what adapters add to products, 0 or 1; null where the bundle
                                        has none */
  const float *mask;                 /* [count, kept + count], added to the scores; null: nothing is hidden */
  float *k, *v;                      /* [kv_heads, count, head_dim] of these rows, for the engine to fill before it looks at
                                        the pieces of later segments; null: nobody wants them */
  int64_t own_stride;
} ek_attention;

/* Rows of a pass that see the same; `pieces` of a segment lead to earlier ones alone. */
typedef struct ek_segment {
  int64_t first_row, count;
  int32_t causal;               /* not 0: text that is encoded; 0: a canvas */
  int32_t reserved;
  const ek_attention *layers;   /* [layer_count] of the call */
} ek_segment;

/* Consecutive layers that share a unit of weights, for all rows of a pass. */
typedef struct ek_layers_call {
  uint32_t struct_size;
  uint32_t reserved;
  const char *program;          /* of the manifest */
  const ek_weights *weights;
  int64_t rows, hidden_size;
  float *x;                     /* [rows, hidden_size] what goes in; what comes out replaces it */
  int64_t first_layer, layer_count;
  int64_t segment_count;
  const ek_segment *segments;   /* [segment_count], in the order of their rows, which they cover */
  int64_t experts;              /* of each of these layers */
  uint64_t inputs;              /* while it stays the same from call to call, so does what lies where tables and masks point:
                                   copies of them, by address, serve again */
} ek_layers_call;

/* A tile of the vocabulary head. Results are relative to the tile; ties go to the lower token. */
typedef struct ek_tile_call {
  uint32_t struct_size;
  uint32_t reserved;
  const ek_weights *weights;
  int64_t first_token, tokens;
  int64_t rows, hidden_size;
  const float *x;               /* [rows, hidden_size] hidden states behind the last norm */
  float temperature;            /* z = softcap(logits) / temperature */
  int32_t gumbel;               /* not 0: sample, with the noise of ek_gumbel_noise times gumbel_scale added to z */
  float gumbel_scale;
  uint64_t seed, draw;
  float *largest;               /* [rows] */
  int64_t *argmax;              /* [rows] 0..tokens-1 */
  float *sum_others;            /* [rows] sum of exp(z - largest) over the tile but the argmax */
  float *sum_z_others;          /* [rows] sum of z exp(z - largest) over the same */
  float *score;                 /* [rows] largest z + noise; null without gumbel, as are the next two */
  int64_t *sample;              /* [rows] where it is */
  float *sample_z;              /* [rows] z there */
  float *soft;                  /* [rows, hidden_size] exp(z - largest) @ tile; null: not wanted */
  float *z;                     /* [rows, tokens]; null: not wanted */
} ek_tile_call;

/* Bytes that an engine takes besides weights and what the session holds for it. */
typedef struct ek_engine_bytes {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t activations; /* arrays within a pass */
  uint64_t scratch;     /* copies of weights that are being used, such as unpacked ones */
  uint64_t head;        /* arrays of the vocabulary head */
  uint64_t allowance;   /* what it allocates later and cannot name: programs, stacks of threads */
  uint64_t weights;     /* of a device beside the memory of the process: room for weights, see keep; not among the others */
} ek_engine_bytes;

/* Block i of `blocks`, each of `bytes`, goes from `from` + i * from_stride to `to` + i * to_stride, in bytes. What is
 * written lies in the engine's memory and does not overlap what is read. */
typedef struct ek_copy {
  void *to;               /* in the engine's memory, unless to_session */
  const void *from;       /* in the engine's memory too, unless from_session */
  uint64_t bytes;
  int64_t blocks;
  int64_t to_stride, from_stride;
  int32_t from_session;   /* not 0: `from` is memory of the session */
  int32_t to_session;     /* not 0: `to` is memory of the session, which may be read once the copy is done; one block then */
} ek_copy;

typedef struct ek_engine {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  const char *name;    /* for messages */
  void *user;          /* first argument of every function */

  /* Fills *bytes for passes of `segments` segments, each of up to `rows` rows that see up to `kept` others, and for head
   * requests of up to `head_rows`, which come one after the other. Called before weights are loaded. */
  int32_t (*get_bytes)(void *user, int64_t rows, int64_t kept, int64_t segments, int64_t head_rows,
                       ek_engine_bytes *bytes);

  /* Layers whose unit has no experts. */
  int32_t (*layers)(void *user, const ek_layers_call *call);

  /* A layer with experts: `route` computes what comes before them and fills counts [experts] with how many rows each has.
   * Those that have any come through `expert` in any order, once each; what one expert says of a row is added to that of
   * the others in the order of their numbers. `join` computes what comes after them. Null: no such layers. */
  int32_t (*route)(void *user, const ek_layers_call *call, int64_t *counts);
  int32_t (*expert)(void *user, const ek_layers_call *call, int64_t expert, const ek_weights *weights);
  int32_t (*join)(void *user, const ek_layers_call *call);

  /* The decoder's input from embedded tokens x [rows, hidden_size], which it replaces, and the soft embedding of the step
   * before, both with the embedding's scale. Null for models without self-conditioning. */
  int32_t (*self_condition)(void *user, const ek_weights *weights, int64_t rows, float *x, const float *soft);

  /* The last norm, in place. */
  int32_t (*final)(void *user, const ek_weights *weights, int64_t rows, float *x);

  int32_t (*tile)(void *user, const ek_tile_call *call);

  /* One line about the failure that a function has just told, for ek_last_error; null, or a null result: there is none. */
  const char *(*last_error)(void *user);

  /* Memory of the engine's own, all three or none; none: it is the session's, which all functions may read. `allocate` puts
   * the address of `bytes` bytes, more than 0, aligned to 64, into *memory; null there is EK_OUT_OF_MEMORY. It is asked for
   * the whole prefix of a sequence at once, and in passes for what is new: an engine for which that is slow keeps what
   * was released for the next time. `release` is called once for each, with the same `bytes`, when no submitted call is
   * under way. Both are called in any function of the session or its sequences, the last ones in ek_session_close.
   * `copy` makes copies one after the other. Where it fails while kept keys and values are moved in place or replaced, a
   * sequence that the pass was to keep rows of may have lost what it kept: then it keeps nothing. */
  int32_t (*allocate)(void *user, uint64_t bytes, void **memory);
  void (*release)(void *user, void *memory, uint64_t bytes);
  int32_t (*copy)(void *user, const ek_copy *copies, int64_t count);

  /* Waits until none of the first `count` of those calls that returned EK_ENGINE_SUBMITTED is under way, counted from the
   * opening of the session; each count is larger than the one before. A failure is that of one of these calls; none of them
   * may use anything then either. The session waits for the calls of a streamed unit of weights once those of the next one
   * are submitted, or before where that has not been read yet; for a tile before the one after the next; for a batch of
   * streamed experts before the next one; and for everything at the end of a pass. Units that stay in memory are not
   * waited for otherwise. A table that has this function serves one session. Null: nothing is submitted. */
  int32_t (*wait)(void *user, uint64_t count);

  /* Memory of the session in which ek_weights.data lies, both or none; none: nobody is told. `lend` tells of it before the
   * first weights are read into it, and `take_back`, with the same address and size, before it goes, when no call that uses
   * it is under way. An engine may lock its pages for copies by its device (cudaHostRegister); where it cannot, it copies
   * from them all the same. A failure of `lend` ends the opening of a session; later, when weights were given back and the
   * rest is lent again, that part is just not lent. */
  int32_t (*lend)(void *user, const void *memory, uint64_t bytes);
  void (*take_back)(void *user, const void *memory, uint64_t bytes);

  /* Weights on a device of the engine's, as far as ek_engine_bytes.weights goes: while the session opens, each of these
   * units comes once, and is copied before `keep` returns. In calls it has no data from then on, and it is not read for
   * them again. The session takes no memory for it beside what it passes through, but where it looks up tokens in it.
   * EK_ENGINE_FULL: there is no memory left for this unit, and none is asked for the units behind it. Null: it keeps
   * none. */
  int32_t (*keep)(void *user, const ek_weights *weights);
} ek_engine;

/* ek_session_open for a bundle whose programs `engine` runs; null: the native engine. The table is copied; what it points
 * at must live until the session is closed. EK_ENGINE_FAILED; those of ek_session_open. */
EK_API ek_status ek_session_open_engine(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                                        ek_session **session) EK_NOEXCEPT;

/* An array that a function of a package takes or gives, dense and in row-major order. */
typedef struct ek_package_array {
  const char *name;      /* in the function */
  const char *dtype;     /* of the manifest: "float32", "float16" or "int32" */
  const int64_t *shape;  /* [rank] */
  int64_t rank;
  void *data;            /* valid during the call; what is taken may be written over */
  uint64_t bytes;
} ek_package_array;

/* A system's own runtime for packages: programs of fixed sizes that hold their weights, such as those of Core ML. The
 * session chooses packages and functions by their lengths, compares their files with the manifest before they are opened,
 * opens and closes them as its budget says, pads what goes in and cuts what comes out. Functions return EK_ENGINE_DONE, or
 * anything else for a failure: then they may put one line about it into `error`, for ek_last_error, as UTF-8 of at most
 * `error_size` bytes with the null byte behind it. They must not call functions of the session that calls them: those are
 * EK_INVALID_STATE, and ek_session_close in `open` would wait for itself. */
typedef struct ek_executor {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  const char *name;    /* for messages */
  void *user;          /* first argument of every function */

  /* Opens the package `unit` in the folder `path` (UTF-8), and puts what `call` and `close` get into *package. `functions`
   * were called when it was last open, and will most likely be called again. Called on one thread of the session's, one
   * package after the other, while the other functions are called on the thread that uses the session. */
  int32_t (*open)(void *user, const char *unit, const char *path, const char *const *functions, int64_t function_count,
                  void **package, char *error, uint64_t error_size);

  /* Runs a function of a package that is open, which fills all that it gives. */
  int32_t (*call)(void *user, void *package, const char *function, const ek_package_array *inputs, int64_t input_count,
                  const ek_package_array *outputs, int64_t output_count, char *error, uint64_t error_size);

  /* Ends a package, once; on the thread that uses the session. */
  void (*close)(void *user, void *package);
} ek_executor;

/* ek_session_open for a bundle whose weights lie in packages that `executor` runs. The table is copied; what it points at
 * must live until the session is closed. Plans of ek_plan_session for such bundles need none. EK_ENGINE_FAILED,
 * EK_UNSUPPORTED_BUNDLE for a bundle without packages; those of ek_session_open. */
EK_API ek_status ek_session_open_packages(const char *bundle, const ek_session_options *options, const ek_executor *executor,
                                          ek_session **session) EK_NOEXCEPT;

/* Loads TVM's runtime into the process, for good, so that sessions run bundles of the format "tvm" too. Their programs are
 * machine code, which can do whatever the application can: before this was called such bundles are refused
 * (EK_UNSUPPORTED_BUNDLE), and afterwards they are to come from somebody who is trusted. `ffi` and `runtime` are the
 * libraries libtvm_ffi and libtvm_runtime, as paths or as names that the system searches; null: their usual names. What
 * TVM has for a kind of device, such as libtvm_runtime_cuda, is loaded from beside `runtime` with the first bundle for it.
 * Only the first call that succeeds has an effect. EK_OPEN_FAILED, EK_UNSUPPORTED_VERSION, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_tvm_load(const char *ffi, const char *runtime) EK_NOEXCEPT;

/* Libraries by which sessions run bundles for Qualcomm's NPU. Paths, or names that the system searches. */
typedef struct ek_qnn_options {
  uint32_t struct_size;
  uint32_t reserved;        /* 0 */
  const char *onnxruntime;  /* ONNX Runtime 1.22 or later; null: its usual name */
  const char *provider;     /* its provider for QNN, from version 2 on a library of its own; null: its usual name */
  const char *backend;      /* QNN's library for the NPU; null: its usual name */
  const char *chip;         /* such as "sm8650": packages that were compiled for it are opened in place of those that are
                               compiled when they are opened; null: on Android the chip that the system tells, elsewhere
                               none */
  const char *soc_model;    /* the number of the chip that an emulation stands for; null: that of QNN */
} ek_qnn_options;

/* Loads ONNX Runtime and its provider for QNN into the process, for good, so that sessions run bundles of the format "qnn"
 * too. Before this was called such bundles are refused (EK_UNSUPPORTED_BUNDLE). ONNX Runtime's reports to its makers are
 * switched off. Null options: the usual names. A provider that the application has registered is taken. Only the first call
 * that succeeds has an effect. EK_INVALID_ARGUMENT, EK_OPEN_FAILED, EK_UNSUPPORTED_VERSION, EK_ENGINE_FAILED where there is no
 * NPU, in every further call too; EK_OUT_OF_MEMORY. */
EK_API ek_status ek_qnn_load(const ek_qnn_options *options) EK_NOEXCEPT;

/* Whether an ONNX model holds nothing but operators that exports of a format ("onnx", "onnx-gpu", "qnn") write, no graph
 * within its graph, and no constants in files elsewhere; for engines outside of this library, before they have one loaded.
 * EK_MALFORMED_FILE, with words that follow the model's name; EK_INVALID_ARGUMENT. */
EK_API ek_status ek_onnx_check(const void *model, uint64_t bytes, const char *format) EK_NOEXCEPT;

/* What a session takes, or would take, and which weights stay in memory: a value of its own, which the caller gives to
 * ek_plan_close. Any thread may read it. A null plan is EK_INVALID_ARGUMENT everywhere but there. */
typedef struct ek_plan ek_plan;

/* The plan of an open session: the one that runs, with the experts that are in memory now. EK_INVALID_ARGUMENT,
 * EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_get_plan(ek_session *session, ek_plan **plan) EK_NOEXCEPT;

/* The plan that ek_session_open_engine would make, from headers alone. `process` stands for what the process holds;
 * UINT64_MAX: what this one does. Fails as ek_session_open_engine does, but the memory of the machine is not looked at. */
EK_API ek_status ek_plan_session(const char *bundle, const ek_session_options *options, const ek_engine *engine,
                                 uint64_t process, ek_plan **plan) EK_NOEXCEPT;

EK_API void ek_plan_close(ek_plan *plan) EK_NOEXCEPT;

typedef struct ek_memory_plan { /* in bytes */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t process;      /* what the process holds without it */
  uint64_t prefix;       /* keys and values of the longest prefix */
  uint64_t activations;  /* arrays between layers and within them */
  uint64_t scratch;
  uint64_t head;
  uint64_t allowance;
  uint64_t pinned;       /* weights that stay in memory */
  uint64_t ring;         /* memory for reading ahead */
  uint64_t streamed;     /* weights that a step reads at most */
  uint64_t weights;      /* all of them */
  uint64_t least_memory; /* the smallest memory_bytes for these lengths */
  int64_t units;         /* what can stay or be read by itself: runs or packages */
  int64_t most_sequences; /* of these lengths that memory_bytes, without it the memory of the machine, has room for; 0: none,
                             or nobody knows */
  uint64_t kept;         /* weights in memory of the engine's own, see ek_engine.keep */
} ek_memory_plan;

/* Fills *memory up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_plan_get_memory(ek_plan *plan, ek_memory_plan *memory) EK_NOEXCEPT;

typedef struct ek_unit_plan {
  uint32_t struct_size;
  int32_t pinned;    /* not 0: it is in memory */
  const char *name;  /* these belong to the plan */
  const char *group; /* "layer", "expert", "head", "embedding", ... */
  uint64_t bytes;
  int32_t kept;      /* not 0: the engine keeps it */
  int32_t reserved;
} ek_unit_plan;

/* Unit number `index` of ek_memory_plan.units, in the order in which a step uses them, then those that are looked up row
 * by row. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_plan_get_unit(ek_plan *plan, int64_t index, ek_unit_plan *unit) EK_NOEXCEPT;

/* ---- Bundles --------------------------------------------------------------------------------------------------
 *
 * The files of a bundle: its manifest is checked against its own digest, every other file against the manifest, when it
 * is read. Sessions do this themselves; these functions are for tokenizers, templates and programs. A file that the
 * manifest does not list cannot be read. A bundle may come from anywhere: files must be regular ones, and symbolic links
 * lead to files of the same folder, or from a snapshot to blobs in a cache of Hugging Face. A digest is no signature:
 * it shows damage and mixed files, not who wrote them.
 *
 * "Those of files" are EK_INVALID_ARGUMENT for a file that is not listed, EK_OPEN_FAILED for one that is missing, not
 * regular, or a link that leaves the bundle, EK_TRUNCATED_FILE and EK_MALFORMED_FILE for another size,
 * EK_CHECKSUM_MISMATCH for other bytes, EK_READ_FAILED, EK_FILE_CHANGED and EK_OUT_OF_MEMORY. */

typedef struct ek_bundle ek_bundle;

/* Opens the bundle in folder `path` (UTF-8): reads and checks its manifest alone. `*bundle` is null after a failure;
 * otherwise it belongs to the caller, who gives it to ek_bundle_close. Different threads may use it at the same time. A
 * null bundle is EK_INVALID_ARGUMENT everywhere but in ek_bundle_close. EK_INVALID_ARGUMENT, EK_OPEN_FAILED,
 * EK_READ_FAILED, EK_FILE_CHANGED, EK_CHECKSUM_MISMATCH, EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION,
 * EK_UNSUPPORTED_BUNDLE for a folder of several bundles, see ek_bundle_choose, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_bundle_open(const char *path, ek_bundle **bundle) EK_NOEXCEPT;

/* Ends it; null is allowed. No other call on it may be under way or follow. Flash files opened from it stay open. */
EK_API void ek_bundle_close(ek_bundle *bundle) EK_NOEXCEPT;

/* The manifest's text (UTF-8 JSON, edgekit.json) as it was checked: `*size` bytes, and a NUL behind them, which belong
 * to the bundle and live until it is closed. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_bundle_manifest(ek_bundle *bundle, const char **text, uint64_t *size) EK_NOEXCEPT;

/* Reads a file that the manifest lists, by its name there, into `buffer` of `capacity` bytes: the very bytes that were
 * compared. `*size` becomes its size. A null buffer asks for the size alone, as the manifest has it. After a failure the
 * buffer holds no particular bytes. Files of more than 256 MiB are EK_MALFORMED_FILE. EK_BUFFER_TOO_SMALL, and those of
 * files. */
EK_API ek_status ek_bundle_read_file(ek_bundle *bundle, const char *name, void *buffer, uint64_t capacity,
                                     uint64_t *size) EK_NOEXCEPT;

/* Compares a file that the manifest lists, for files that something else opens by their path, such as functions of MLX.
 * Of the flash file it compares the header: its runs are compared when they are read. Those of files. */
EK_API ek_status ek_bundle_check_file(ek_bundle *bundle, const char *name) EK_NOEXCEPT;

/* ek_flash_open for the flash file of the bundle, whose header is compared first. Those of ek_flash_open and files. */
EK_API ek_status ek_bundle_open_weights(ek_bundle *bundle, ek_flash_file **file) EK_NOEXCEPT;

/* Reads a file of a folder that no manifest lists, such as the bundles.json of several bundles, with the same care for
 * links and what is no regular file, into `buffer`; `*size` becomes its size. Nothing is compared. A file of more than
 * `capacity` bytes is EK_MALFORMED_FILE. EK_INVALID_ARGUMENT for a name that leaves the folder, and those of files. */
EK_API ek_status ek_folder_read_file(const char *folder, const char *name, void *buffer, uint64_t capacity,
                                     uint64_t *size) EK_NOEXCEPT;

/* Compares such a file with the size and XXH3-64 that something else says it has. Fails as ek_folder_read_file does. */
EK_API ek_status ek_folder_check_file(const char *folder, const char *name, uint64_t size, uint64_t xxh3) EK_NOEXCEPT;

/* ---- Several bundles of a model --------------------------------------------------------------------------------
 *
 * A folder may hold several bundles of one model, one for each format, in folders below it, and `bundles.json`, which lists
 * them. Which of them is to be opened depends on what runs it:
 *
 *   char folder[4096] = {0};
 *   uint64_t size;
 *   ek_bundle_choose("model", NULL, folder, sizeof folder - 1, &size);
 *   ek_session_open(folder, NULL, &session);
 */

#define EK_FOLDER_OTHER ((int32_t)0)   /* neither, or no folder that can be looked into */
#define EK_FOLDER_BUNDLE ((int32_t)1)  /* it has the manifest of a bundle */
#define EK_FOLDER_BUNDLES ((int32_t)2) /* it has no manifest, and bundles.json */

/* What is in a folder, by the names of its files alone; what arrives (ek_fetch_open) has these when it is whole.
 * EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_folder_look(const char *folder, int32_t *kind) EK_NOEXCEPT;

/* Formats of bundles that ek_session_open runs now: "native", and others once their libraries are loaded, as by ek_tvm_load.
 * The first `capacity` of them go to `names`, which may be null for 0, and their number to *count. The library owns the
 * strings. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_session_formats(const char **names, int32_t capacity, int32_t *count) EK_NOEXCEPT;

typedef struct ek_choose_options {
  uint32_t struct_size;
  int32_t format_count;
  const char *const *formats; /* [format_count] that the caller runs, in any order; null: those of ek_session_formats */
  const char *system;         /* "ios" or "macos", and its version, such as "26.4"; null: any version will do */
  const char *system_version;
  int32_t listed;             /* not 0: bundles.json alone is here, and nothing of the bundles is looked at */
  int32_t reserved;
} ek_choose_options;

#define EK_CHOOSE_OPTIONS_INIT {sizeof(ek_choose_options), 0, NULL, NULL, NULL, 0, 0}

/* The folder of the bundle to open: `folder` itself where it is a bundle, of whatever format, else that of the first bundle in
 * its bundles.json which the options allow, those last that were compiled for other chips than the one that ek_qnn_load knows;
 * its manifest is compared with what bundles.json says of it. A path in `buffer` of `capacity` bytes, without a NUL; `*size` is
 * its size in bytes, also where `buffer` is null. EK_UNSUPPORTED_BUNDLE where none is allowed, with what keeps each from it;
 * EK_OPEN_FAILED for a folder that holds no bundle, and where that bundle is missing; EK_MALFORMED_FILE,
 * EK_UNSUPPORTED_VERSION, EK_CHECKSUM_MISMATCH, EK_TRUNCATED_FILE, EK_READ_FAILED, EK_FILE_CHANGED, EK_BUFFER_TOO_SMALL,
 * EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_bundle_choose(const char *folder, const ek_choose_options *options, char *buffer, uint64_t capacity,
                                  uint64_t *size) EK_NOEXCEPT;

/* Compares the text of a bundles.json, `size` bytes, with the rules of the file, for those who go through all its bundles; `where`
 * names it in messages. EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION, EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_bundle_list_check(const char *text, uint64_t size, const char *where) EK_NOEXCEPT;

/* ---- Bundles that arrive ---------------------------------------------------------------------------------------
 *
 * Brings a bundle from servers to a folder. The library opens no connection: it says which bytes of which file to ask for,
 * and the caller's transport gives them as they come. Every run of the weights and every file is compared with its digest
 * when its last byte is here, and asked for again, of another source if there is one, where it is damaged. The bundle takes its
 * place when all of it is whole, its SHA-256 digests too.
 *
 * A bundle that is in the folder stays until then, and what has not changed is copied from it. What has arrived lies in FOLDER.arriving,
 * and a later fetch goes on with it: nothing is written down about it, what is there is compared.
 *
 *   ek_fetch_open("model", &options, &fetch);
 *   for (;;) {
 *     ek_fetch_request request = EK_FETCH_REQUEST_INIT;
 *     int32_t step;
 *     if ((status = ek_fetch_next(fetch, &step, &request)) != EK_OK || step == EK_FETCH_READY) break;
 *     if (step == EK_FETCH_ASK) send(fetch, &request);    calls ek_fetch_answer, ek_fetch_write, ek_fetch_end
 *   }
 *   if (status == EK_OK) status = ek_fetch_finish(fetch);
 *
 * A transport over HTTP asks for `source's address / name`, each part of the name with percent encoding, with the headers
 * "Accept-Encoding: identity" and, where `bytes` is not 0, "Range: bytes=OFFSET-LAST", LAST being offset + bytes - 1. It
 * follows redirects.
 *
 * Any number of requests may be open at the same time, each used by one thread: its bytes come in order. Another thread may
 * end it or give it back. A fetch that failed gives the same error from then on; open it again to go on. A null fetch is
 * EK_INVALID_ARGUMENT everywhere but in ek_fetch_close. */

typedef struct ek_fetch ek_fetch;

typedef struct ek_fetch_options {
  uint32_t struct_size;
  int32_t source_count;       /* 1 to 32 places that serve the same folder */
  const char *const *sources; /* [source_count] their names in messages, such as their addresses */
  const char *sha256;         /* the 64 digits that the manifest must begin with, or the SHA-256 of bundles.json where the
                                 address is that of several bundles; null: any bundle */
  const char *const *formats; /* [format_count] of the bundles that this application runs, such as "native", where there
                                 are several; null: the first. What was compiled for other chips comes last,
                                 where ek_qnn_load was called before */
  int32_t format_count;
  int32_t compare;            /* not 0: a bundle with the same manifest that is there is compared and mended; 0: it is taken
                                 for whole if its files have their sizes */
  const char *system;         /* "ios" or "macos", and its version, such as "26.4": chooses among several bundles; null: */
  const char *system_version; /* any version will do */
  uint64_t request_bytes;     /* the most that is asked for at once, but for what came damaged; 0: 8 MiB */
  int32_t only_formats;       /* not 0: a bundle that is alone has to be of one of the formats too; 0: it may have any */
  int32_t keep_format;        /* not 0: where the folder has a bundle, and the set one of its format that the system runs, that
                                 one is taken, whatever `formats` says; 0: the choice is made anew */
} ek_fetch_options;

#define EK_FETCH_OPTIONS_INIT {sizeof(ek_fetch_options), 0, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0}

/* Folder `folder` (UTF-8) need not exist; nobody else may fetch into it. EK_INVALID_ARGUMENT, EK_OPEN_FAILED,
 * EK_WRITE_FAILED, EK_INVALID_STATE where another fetch is at it, EK_OUT_OF_MEMORY. `*fetch` is null after a failure;
 * otherwise it belongs to the caller, who gives it to ek_fetch_close. */
EK_API ek_status ek_fetch_open(const char *folder, const ek_fetch_options *options, ek_fetch **fetch) EK_NOEXCEPT;

/* Ends it; null is allowed. What has arrived stays. No other call on it may be under way or follow. */
EK_API void ek_fetch_close(ek_fetch *fetch) EK_NOEXCEPT;

#define EK_FETCH_ASK ((int32_t)0)     /* send the request */
#define EK_FETCH_WORKING ((int32_t)1) /* something that was here has been compared; call again */
#define EK_FETCH_WAIT ((int32_t)2)    /* all is asked for: call again when an open request has given something or is over */
#define EK_FETCH_READY ((int32_t)3)   /* all is here: ek_fetch_finish */

typedef struct ek_fetch_request {
  uint32_t struct_size;
  int32_t source;             /* which one to ask */
  const char *name;           /* of the file, below the source's address; belongs to the fetch, lives until it is closed */
  uint64_t id;
  uint64_t offset, bytes;     /* what of it; bytes 0: all, without a Range header */
  uint64_t size;              /* of the file; 0: not known */
  int32_t wait_milliseconds;  /* to be let pass before, as the source has failed */
  int32_t patience_milliseconds;  /* the answer has to begin within this time, whatever comes before it, and in each such */
  int32_t least_bytes_per_second; /* time as much has to come of it; else the transport ends the request (ek_fetch_end) */
  int32_t reserved;
} ek_fetch_request;

#define EK_FETCH_REQUEST_INIT {sizeof(ek_fetch_request), 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0}

/* Tells in *step what comes next, and fills *request for EK_FETCH_ASK. Compares what is here already, 32 MB or a run at a
 * time. EK_FETCH_FAILED where no source gives what is needed; EK_CHECKSUM_MISMATCH, EK_MALFORMED_FILE where they give
 * other bytes again and again; EK_WRITE_FAILED, also for a disk that has no room for the bundle; EK_UNSUPPORTED_VERSION,
 * EK_UNSUPPORTED_BUNDLE where none of several bundles is of the formats, or with only_formats the one that is alone is not;
 * EK_INVALID_ARGUMENT for a folder that has files
 * which are no bundle's; EK_OPEN_FAILED where a folder or another thing lies in FOLDER.arriving in the place of a file;
 * EK_READ_FAILED, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_fetch_next(ek_fetch *fetch, int32_t *step, ek_fetch_request *request) EK_NOEXCEPT;

/* What an HTTP server answered, before its bytes: the status, redirects followed, and the header Content-Range, null where
 * there is none. Both are compared with the request. EK_FETCH_FAILED: the answer is of no use, and the request is over. A server that answers a
 * range with 200 gives whole files alone: what is wanted of the file is taken of this answer, from byte 0 on, and other ranges
 * that were asked of it are over. A request that is over is left alone. Transports of other kinds leave the call out.
 * EK_INVALID_ARGUMENT. */
EK_API ek_status ek_fetch_answer(ek_fetch *fetch, uint64_t id, int32_t http_status, const char *content_range) EK_NOEXCEPT;

/* The next `size` bytes of a request. EK_STOPPED: no more of it are needed, and it is over. Another error ends the fetch.
 * EK_INVALID_ARGUMENT, those of ek_fetch_next. */
EK_API ek_status ek_fetch_write(ek_fetch *fetch, uint64_t id, const void *data, uint64_t size) EK_NOEXCEPT;

/* A request has no more bytes: `why` null where its answer has ended, else what went wrong, for people. What it lacks is asked
 * for again. A request that is over is left alone. EK_INVALID_ARGUMENT; after the manifest those of ek_fetch_next. */
EK_API ek_status ek_fetch_end(ek_fetch *fetch, uint64_t id, const char *why) EK_NOEXCEPT;

/* Gives a request back which was not sent, or not to its end, for a reason that is not its source's, such as a pause: what it
 * lacks is asked for again. One that is over is left alone. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_fetch_return(ek_fetch *fetch, uint64_t id) EK_NOEXCEPT;

typedef struct ek_fetch_info {
  uint32_t struct_size;
  int32_t current;        /* not 0: the folder has this bundle already */
  uint64_t total_bytes;   /* of the bundle; 0: not known yet */
  uint64_t whole_bytes;   /* of these, compared */
  uint64_t arrived_bytes; /* further ones, which wait for the rest of their run */
  uint64_t fetched_bytes; /* that sources gave since it was opened */
  uint64_t copied_bytes;  /* from the bundle that was there */
  uint64_t found_bytes;   /* left by an earlier fetch */
  int64_t damaged;        /* runs and files that came with other bytes */
  int64_t requests;       /* that are open */
  const char *arriving;   /* the folder with what has arrived; belongs to the fetch */
  const char *chosen;     /* of several bundles, the path of the one that is taken, below the source's address; belongs to the
                             fetch; null: there is one alone, or nobody knows yet */
  int32_t kept_format;    /* not 0: it was chosen by the format of the bundle in the folder (keep_format) */
  int32_t reserved;
} ek_fetch_info;

/* Fills *info up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_fetch_get_info(ek_fetch *fetch, ek_fetch_info *info) EK_NOEXCEPT;

/* Puts the bundle in its place, in one step where the system can exchange folders, and removes the one that was there. Sessions of that
 * one must be closed: what they read after that has changed. EK_INVALID_STATE before EK_FETCH_READY, EK_WRITE_FAILED,
 * EK_OPEN_FAILED as above. */
EK_API ek_status ek_fetch_finish(ek_fetch *fetch) EK_NOEXCEPT;

/* Removes what has arrived; other calls than ek_fetch_close are EK_INVALID_STATE then. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_fetch_discard(ek_fetch *fetch) EK_NOEXCEPT;

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* Text to token ids and back, as the tokenizer.json of a bundle says: byte pair encoding by bytes or by characters, with
 * the normalizers, expressions and decoders of the supported families. One that this library does not know is
 * EK_UNSUPPORTED_BUNDLE. Nothing in it makes a text take longer than its length says. */

typedef struct ek_text ek_text;

#define EK_TEXT_MOST ((uint64_t)1 << 28) /* bytes of a text */

/* Opens the tokenizer of the bundle in folder `bundle` (UTF-8), whose files are compared with the manifest. `*text` is null
 * after a failure; otherwise it belongs to the caller, who gives it to ek_text_close. Different threads may use it at the
 * same time. A null text is EK_INVALID_ARGUMENT everywhere but in ek_text_close. Those of ek_bundle_open and files,
 * EK_MALFORMED_FILE and EK_UNSUPPORTED_BUNDLE for what is in the file. */
EK_API ek_status ek_text_open(const char *bundle, ek_text **text) EK_NOEXCEPT;

/* The same of the bytes of a tokenizer.json. */
EK_API ek_status ek_text_open_json(const char *json, uint64_t bytes, ek_text **text) EK_NOEXCEPT;

/* Ends it; null is allowed. No other call on it may be under way or follow. */
EK_API void ek_text_close(ek_text *text) EK_NOEXCEPT;

/* `*id` of the token that is spelled exactly so, -1 where there is none. */
EK_API ek_status ek_text_find(ek_text *text, const char *token, int64_t *id) EK_NOEXCEPT;

/* How many tokens have a text. The model may know more ids than that. */
EK_API ek_status ek_text_count(ek_text *text, int64_t *count) EK_NOEXCEPT;

/* Ids of a text of `bytes` bytes, with what the tokenizer puts around a text unless `add_special` is 0. `*count` becomes
 * their number; null `ids` ask for it alone. EK_INVALID_ARGUMENT for what is not UTF-8, EK_BUFFER_TOO_SMALL. */
EK_API ek_status ek_text_encode(ek_text *text, const char *utf8, uint64_t bytes, int32_t add_special, int64_t *ids,
                                int64_t capacity, int64_t *count) EK_NOEXCEPT;

/* Ids of a text that goes on behind another one, as the next turn of a conversation does: the tokenizer puts nothing in
 * front of it or around it, and no token of it reaches into what is before. Otherwise as ek_text_encode. */
EK_API ek_status ek_text_encode_behind(ek_text *text, const char *utf8, uint64_t bytes, int64_t *ids, int64_t capacity,
                                       int64_t *count) EK_NOEXCEPT;

/* The text of ids, without special tokens unless `skip_special` is 0, and without ids that are no token: `*size` bytes,
 * and no NUL. A null buffer asks for the size alone. Bytes that are not UTF-8 become U+FFFD. EK_BUFFER_TOO_SMALL. */
EK_API ek_status ek_text_decode(ek_text *text, const int64_t *ids, int64_t count, int32_t skip_special, char *buffer,
                                uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* A message of a conversation. */
typedef struct ek_text_message {
  const char *role;    /* "system", "user" or "assistant" */
  const char *content; /* UTF-8, no NUL behind it is needed */
  uint64_t content_bytes;
} ek_text_message;

/* The text of a conversation as the model's chat template writes it, with the opening of the answer behind it, to be given to
 * ek_text_encode without what the tokenizer puts around a text: perhaps a system message, then the user's and the
 * assistant's in turn, the last of them the user's. EK_INVALID_ARGUMENT for another order, and for a content that has a text
 * in it which the template treats in a way of its own, as Qwen3's does <tool_response>; EK_INVALID_STATE where nothing is known
 * of the model's template, EK_BUFFER_TOO_SMALL; sizes are as in ek_text_decode. */
EK_API ek_status ek_text_chat(ek_text *text, const ek_text_message *messages, int64_t count, char *buffer, uint64_t capacity,
                              uint64_t *size) EK_NOEXCEPT;

/* Takes the form of chats from the bytes of a chat.json. No other call on `text` may be under way. EK_MALFORMED_FILE,
 * EK_UNSUPPORTED_BUNDLE. */
EK_API ek_status ek_text_set_chat_form(ek_text *text, const char *json, uint64_t bytes) EK_NOEXCEPT;

/* Text of ids that arrive in pieces, such as the tokens that a generation commits: a character may be spread over several
 * tokens, so what is not yet certain is held back: all of it where the decoder looks at the text of all tokens, as that of no
 * published tokenizer does. The pieces joined are the text that ek_text_decode gives of all ids, but for runs of more than 64
 * tokens that stand for one byte each (Gemma's kind): of these, what is UTF-8 so far is given out, though a wrong byte behind
 * it makes the whole run U+FFFD. A stream is used by one thread at a time. A null stream is EK_INVALID_ARGUMENT everywhere but
 * in ek_text_stream_close. */
typedef struct ek_text_stream ek_text_stream;

/* Opens one; `skip_special` is as above. `text` must stay open for as long. `*stream` is null after a failure; otherwise it
 * belongs to the caller, who gives it to ek_text_stream_close. */
EK_API ek_status ek_text_stream_open(ek_text *text, int32_t skip_special, ek_text_stream **stream) EK_NOEXCEPT;

/* Takes more ids. After an error it has taken none of them. EK_UNSUPPORTED_BUNDLE where the decoder would look at very many ids
 * again for each that follows, as that of no published tokenizer does. */
EK_API ek_status ek_text_stream_push(ek_text_stream *stream, const int64_t *ids, int64_t count) EK_NOEXCEPT;

/* No ids follow for now: what is held back becomes certain, and what is incomplete in it U+FFFD. */
EK_API ek_status ek_text_stream_finish(ek_text_stream *stream) EK_NOEXCEPT;

/* Takes of the text that has become certain as many whole characters as the buffer has room for: `*size` bytes, 0 where there
 * is none, and no NUL. A null buffer asks how many there are. EK_BUFFER_TOO_SMALL where there is no room for the next
 * character; 4 bytes are enough for any. */
EK_API ek_status ek_text_stream_take(ek_text_stream *stream, char *buffer, uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* Ends it; null is allowed. */
EK_API void ek_text_stream_close(ek_text_stream *stream) EK_NOEXCEPT;

/* ---- Generation ----------------------------------------------------------------------------------------------- */

/* How a generation came to its end. */
#define EK_FINISH_NONE ((int32_t)0)    /* it has not, or ended by an error */
#define EK_FINISH_EOS ((int32_t)1)     /* an end token was committed */
#define EK_FINISH_LENGTH ((int32_t)2)  /* as many tokens as were asked for */
#define EK_FINISH_STOPPED ((int32_t)3) /* the callback asked to stop */

typedef struct ek_generation_statistics {
  uint32_t struct_size;
  int32_t finish_reason;    /* EK_FINISH_... */
  int64_t denoising_steps;  /* steps whose pass ran */
  int64_t forwards;         /* denoising passes: one a step, two with guidance, fewer where steps are drafted */
  int64_t projections;      /* further passes of the vocabulary head on the same hidden states */
  int64_t prefills;         /* causal passes that encoded text */
  int64_t committed_tokens; /* final ones, padding not counted */
  int64_t canvases;         /* canvases or blocks begun */
  int64_t rows;             /* positions that all these passes computed */
  double seconds;           /* since ek_generate was called: encoding the prompt, reading weights and callbacks with
                               them; 0 for a sampler by itself, which does not see when its passes run */
} ek_generation_statistics;

#define EK_EVENT_DRAFT ((int32_t)0)     /* after a denoising step; nothing in it is final */
#define EK_EVENT_COMMITTED ((int32_t)1) /* final tokens; the answer is those of all such events */
#define EK_EVENT_DONE ((int32_t)2)      /* the last event of a generation that was neither stopped nor failed */

/* Made by the library; it and what it points at live during the callback. */
typedef struct ek_event {
  uint32_t struct_size;
  int32_t kind;            /* EK_EVENT_...; ignore others than these: later versions may add some */
  int64_t canvas_index;    /* of the canvas or block; done: 0 */
  int64_t step;            /* draft: counts from 1 within its canvas or block; else 0 */
  int64_t start;           /* place of ids[0] in the answer; done: 0 */
  const int64_t *ids;      /* [count] draft: the best guess, the mask token where a masked family leaves it open;
                              committed: final tokens; done: null */
  int64_t count;
  const uint8_t *accepted; /* [count] draft: 1 where this step accepted or committed a token; else null */
  const ek_generation_statistics *statistics; /* counters so far; final when done */
} ek_event;

/* Called on the thread that called ek_generate, between passes: until it returns nothing is computed. It must not
 * call functions of the session that generates, nor leave by an exception or a long jump. Returns 0 to go on, anything
 * else to stop; not looked at when done. */
typedef int32_t (*ek_event_callback)(const ek_event *event, void *user_data);

typedef struct ek_generate_options {
  uint32_t struct_size;
  uint32_t reserved;      /* 0 */
  uint64_t seed;          /* equal seeds give equal events, on every machine and with any number of threads */
  int64_t max_new_tokens; /* rounded up to whole canvases or blocks; 0: what the checkpoint says */
  int64_t steps;          /* denoising steps, per canvas where canvases are encoded; 0: what the checkpoint says */
  const char *options;    /* a JSON object of sampler options by name, such as {"temperature": 0.7}; null: none */
} ek_generate_options;

/* The defaults, which a null pointer stands for. */
#define EK_GENERATE_OPTIONS_INIT {sizeof(ek_generate_options), 0, 0, 0, 0, NULL}

/* A whole generation: `prompt` are `count` token ids of the bundle's tokenizer, chat template included where the
 * model wants one. Sampler options are those that ek_sampler_get_options lists; they win over the bundle's own, and one
 * that is given twice, as a member and among `options` too, is EK_INVALID_ARGUMENT. `callback` may be null and gets
 * `user_data`; `statistics` may be null and is filled up to its struct_size, also when the run ends by a stop or an
 * error.
 *
 * The memory budget of a session holds for the lengths of this call too: where it was opened for shorter ones, it is planned
 * again, with fewer weights in memory, and keeps that plan. For n new tokens these lengths are
 *  - where ek_session_info has causal_prefix: `canvas` at least canvas_length, and `positions` at least count + n
 *    with n rounded up to whole canvases, less one canvas, which is never encoded;
 *  - otherwise: `canvas` at least count + n with n rounded up to whole blocks (block_length of the sampler options);
 *    `positions` does not matter.
 * What the budget has no room for fails with EK_BUDGET_EXCEEDED before the first pass. Without one, memory grows as needed.
 *
 * The text that the session holds is forgotten first, unless the option continue_prefix, of models with a causal
 * prefix, has the prompt follow it: then a conversation goes on, and the prompt needs no second begin token and only
 * what the chat template puts between two turns. Afterwards the session holds the prompt and every committed token, the
 * end token with them, what is behind it not. All but the last canvas is encoded; that one is uncached, and a call that
 * continues encodes it before its prompt: `positions` above is for prefix_length and uncached_length too. After a stop
 * or a failure it holds what was encoded and committed until then. The session is idle after the call, whatever its
 * result.
 *
 * EK_INVALID_ARGUMENT for options, a prompt or lengths that do not fit the model; EK_STOPPED when the callback asked
 * for it; EK_NOT_FINITE; EK_BUDGET_EXCEEDED; EK_MALFORMED_FILE and EK_UNSUPPORTED_BUNDLE when the bundle does not say
 * which loop it needs; those of reading, and EK_OUT_OF_MEMORY. */
EK_API ek_status ek_generate(ek_session *session, const int64_t *prompt, int64_t count,
                             const ek_generate_options *options, ek_event_callback callback, void *user_data,
                             ek_generation_statistics *statistics) EK_NOEXCEPT;

/* ---- An answer while it resolves ----------------------------------------------------------------------------------
 *
 * What a screen draws of a generation: ek_canvas_fold makes cells of its events, tokens with their places and states, and
 * ek_canvas_draw makes text of the cells. Neither keeps anything between two calls: the cells are the caller's.
 *
 *   ek_canvas_cell cells[MOST];
 *   int64_t count = 0;
 *   ... for each event of a generation that begins:
 *   status = ek_canvas_fold(cells, count, event, mask_token, cells, MOST, &count);
 */

/* How certain a token is; from the least. */
#define EK_CELL_OPEN ((int32_t)0)      /* a masked family leaves the place open */
#define EK_CELL_DRAFT ((int32_t)1)     /* guessed by the last step */
#define EK_CELL_KEPT ((int32_t)2)      /* of masked families: accepted before the last step; it may still change */
#define EK_CELL_ACCEPTED ((int32_t)3)  /* accepted by the last step; it may still change */
#define EK_CELL_COMMITTED ((int32_t)4) /* final */

/* A token at its place in the answer. Arrays of them are in order of their places. */
typedef struct ek_canvas_cell {
  int64_t place; /* from 0 */
  int64_t token;
  int32_t state; /* EK_CELL_... */
  int32_t reserved;
} ek_canvas_cell;

/* The cells after `event`; `cells` are the `count` before it, none before the first event of a generation.
 * `mask_token` is the token of places that a masked family leaves open, negative for families that guess at every place.
 *  - A draft: final tokens, and behind them the draft. A token that a masked family has not left open was accepted, though
 *    its event says so but once; other families accept anew in every step.
 *  - Committed tokens: they are final. What a masked family has behind them stays until its next draft.
 *  - Done: final tokens alone. Events of other kinds change nothing.
 * `*folded_count` becomes their number, count + event->count at most; null `folded` asks for it alone. `folded` may be
 * `cells`. EK_BUFFER_TOO_SMALL where they are more than `capacity`, EK_INVALID_ARGUMENT also for a draft without
 * `accepted` and a state that there is none of, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_canvas_fold(const ek_canvas_cell *cells, int64_t count, const ek_event *event, int64_t mask_token,
                                ek_canvas_cell *folded, int64_t capacity, int64_t *folded_count) EK_NOEXCEPT;

/* Text of neighbours in the same state. */
typedef struct ek_canvas_part {
  uint64_t bytes; /* of it, behind those of the parts before; not 0 */
  int32_t state;  /* EK_CELL_... */
  int32_t reserved;
} ek_canvas_part;

/* The text of cells: `*size` bytes without a NUL, in `*part_count` parts. What is final reads as ek_text_decode has it,
 * without special tokens. Behind it each token reads as it does inside of a sentence, with the space in front of it, and
 * at place 0 as at the beginning of a text. Tokens that follow each other and have but parts of characters (U+FFFD) are
 * drawn together, in the least certain of their states, final ones with them where a character begins in these. An open
 * place is a dot (U+00B7), a token without a text a circle (U+25E6); a space stands between circles and what is beside
 * them.
 *
 * There are no more parts than cells. A null `buffer` or `parts` asks for its number alone. EK_BUFFER_TOO_SMALL where one
 * of them has no room: nothing is written then but both numbers. EK_INVALID_ARGUMENT, those of ek_text_decode. */
EK_API ek_status ek_canvas_draw(ek_text *text, const ek_canvas_cell *cells, int64_t count, char *buffer, uint64_t capacity,
                                uint64_t *size, ek_canvas_part *parts, int64_t part_capacity,
                                int64_t *part_count) EK_NOEXCEPT;

/* ---- Samplers -------------------------------------------------------------------------------------------------
 *
 * The procedure of a generation by itself, for whoever runs the passes, such as Core ML packages or functions of MLX: it
 * asks, and goes on once it has its answer; who asks no more has ended it. It starts no threads, reads no files and calls
 * nothing back. ek_generate is such a sampler over a session.
 *
 *   while (ek_sampler_next(sampler, &ask) == EK_OK && ask.kind != EK_ASK_DONE) {
 *     if (ask.kind == EK_ASK_DENOISE) {
 *       ... the pass of ask.ids, as ek_session_denoise ...
 *       ek_sampler_answer(sampler, &output);
 *     } ...
 *   }
 *
 * Functions of one sampler must not be called by two threads at the same time; different ones are independent of each
 * other. A null sampler is EK_INVALID_ARGUMENT everywhere but in ek_sampler_close. */

typedef struct ek_sampler ek_sampler;

/* The model that answers. The struct and what it points at belong to the caller, and are not looked at after the call. */
typedef struct ek_sampler_model {
  uint32_t struct_size;
  int32_t projects;      /* not 0: it keeps the hidden states of a pass, and EK_ASK_PROJECT comes; 0: the sampler asks for
                            the pass again instead, which counts among forwards */
  int64_t vocabulary;    /* tokens, at least 1; ids are 0..vocabulary-1 */
  int64_t hidden_size;   /* width of a soft embedding; 0: no self-conditioning, and no soft is asked for */
  int64_t canvas_length; /* 0: it takes canvases of any length */
  int64_t max_positions; /* prompt and answer together, more is EK_INVALID_ARGUMENT; 0: unknown */
  const char *sampler;   /* section "sampler" of the bundle's manifest: {"name": ..., "config": {...}} */
  const char *bundle;    /* what saved states are bound to, such as the manifest's digest; null: they cannot be saved */

  /* The text that the model holds, for the option continue_prefix: `encoded_pieces` pieces of `piece_lengths` token ids
   * each, one after the other in `encoded`, as they were encoded; behind them `uncached_count` ids that are final and
   * not encoded. Null and 0 for none. */
  const int64_t *encoded;
  const int64_t *piece_lengths;
  int64_t encoded_pieces;
  const int64_t *uncached;
  int64_t uncached_count;
  int64_t prefix_block;  /* of encoded text, see ek_session_info; 0 stands for 1 */
  int32_t shift_logits;  /* not 0: the scores at position j predict token j + 1, "shift_logits" of the manifest's model */
  int32_t role_head;     /* not 0: it can be asked for roles, "role_head" of the manifest's model */
} ek_sampler_model;

#define EK_SAMPLER_MODEL_INIT {sizeof(ek_sampler_model), 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, NULL, 0, 0, 0, 0}

/* A sampler for one generation: prompt and options as in ek_generate. EK_INVALID_ARGUMENT for options that do not fit the
 * model, EK_INVALID_PROMPT and EK_PROMPT_TOO_LONG for the prompt; EK_MALFORMED_FILE and EK_UNSUPPORTED_BUNDLE when
 * `model->sampler` does not say which procedure it needs; EK_OUT_OF_MEMORY. `*sampler` is null after a failure. */
EK_API ek_status ek_sampler_create(const ek_sampler_model *model, const int64_t *prompt, int64_t count,
                                   const ek_generate_options *options, ek_sampler **sampler) EK_NOEXCEPT;

/* Ends it; null is allowed. */
EK_API void ek_sampler_close(ek_sampler *sampler) EK_NOEXCEPT;

/* The options that a generation over this model has, as JSON in `buffer` of `capacity` bytes, without a NUL; `*size` is
 * its size in bytes, also where `buffer` is null:
 *
 *   {"family": "llada", "draws": false, "options": [{"name": "temperature", "aliases": [], "type": "float", "value": 0,
 *    "minimum": 0, "maximum": null, "above_minimum": false, "choices": [], "optional": false, "internal": false,
 *    "help": "..."}, ...], "lengths": {"new_tokens": 128, "prefix": 0, "canvas": 140, "canvases": 4, "steps": 32,
 *    "segments": 1, "text": "128 new tokens"}}
 *
 * "draws": whether anything is drawn; else every seed gives the same answer.
 * Types are "int", "float", "bool", "str" (one of "choices") and "ids" (token ids). "optional": null switches it off.
 * "internal": for programs, not for people. "aliases" are names that `options` and generation configs may use for it.
 * "value" is what it is in this generation; with a null `options` and an empty config those are the defaults. "lengths"
 * are what a prompt of `prompt` tokens takes, at most, earlier text counted with it: positions as in ek_sampler_lengths,
 * canvases (of LLaDA blocks), denoising steps of each, segments of a pass, and in words; null where `prompt` is -1.
 *
 * As ek_sampler_create otherwise; EK_BUFFER_TOO_SMALL. */
EK_API ek_status ek_sampler_get_options(const ek_sampler_model *model, const ek_generate_options *options, int64_t prompt,
                                        char *buffer, uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* Positions that the generation takes, at most: what a session must be opened for, see ek_generate. */
typedef struct ek_sampler_lengths {
  uint32_t struct_size;
  int32_t reserved;
  int64_t new_tokens; /* added to the prompt, padding with them */
  int64_t prefix;     /* the longest encoded prefix */
  int64_t canvas;     /* the longest pass */
  int64_t canvases;   /* of LLaDA blocks */
  int64_t steps;      /* denoising steps of each */
  int64_t segments;   /* of a pass */
} ek_sampler_lengths;

/* Fills *lengths up to its struct_size. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_sampler_get_lengths(ek_sampler *sampler, ek_sampler_lengths *lengths) EK_NOEXCEPT;

/* Fills *statistics up to its struct_size with the counters so far; `finish_reason` is EK_FINISH_NONE before the end.
 * EK_INVALID_ARGUMENT. */
EK_API ek_status ek_sampler_get_statistics(ek_sampler *sampler, ek_generation_statistics *statistics) EK_NOEXCEPT;

#define EK_ASK_FORGET ((int32_t)0)    /* forget all text, encoded and uncached */
#define EK_ASK_ENCODE ((int32_t)1)    /* encode `ids` behind the prefix, as ek_session_prefill; they begin with what is
                                         uncached, which is then encoded */
#define EK_ASK_DENOISE ((int32_t)2)   /* a pass of `ids` with `soft`, as ek_session_denoise; answer it */
#define EK_ASK_PROJECT ((int32_t)3)   /* the pass of before, which was of `ids`, with another request; answer it */
#define EK_ASK_DRAFT ((int32_t)4)     /* told: after a denoising step; nothing in it is final */
#define EK_ASK_COMMITTED ((int32_t)5) /* told: final tokens; the answer is those of all such asks */
#define EK_ASK_DONE ((int32_t)6)      /* told: the end, which stays */
#define EK_ASK_PASS ((int32_t)7)      /* a pass of `segments`, as ek_session_pass; answer those that have a request. What
                                         is uncached is among what they keep */
#define EK_ASK_CROP ((int32_t)8)      /* crop the prefix to `prefix_length`, where it is longer; nothing is uncached then */

/* Made by the library; what it points at lives until the next call on the sampler. */
typedef struct ek_ask {
  uint32_t struct_size;
  int32_t kind;              /* EK_ASK_... */
  const int64_t *ids;        /* [count] see the kinds; forget, done: null */
  int64_t count;
  const float *soft;         /* denoise: [count, hidden_size], what an earlier answer gave as soft, or null */
  ek_head_request request;   /* denoise, project: row_count is the number of rows also where rows is null */
  int32_t logits;            /* denoise, project: not 0: the answer needs `logits` */
  int32_t reserved;
  int64_t canvas_index;      /* draft, committed: of the canvas or block */
  int64_t step;              /* draft: counts from 1 within its canvas or block */
  int64_t start;             /* draft, committed: place of ids[0] in the answer */
  const uint8_t *accepted;   /* draft: [count] 1 where this step accepted or committed a token; else null */
  const int64_t *kept;       /* told: [kept_count] text of a prefix that is final and not encoded, which is uncached from now
                                on; null: nothing changes */
  int64_t kept_count;
  int64_t prefix_length;     /* encode, denoise, project, pass: positions that are encoded before it, */
  uint64_t text;             /* and the number of their text, 0: not known. Over a sequence of another text, see
                                ek_sequence_info, the answer is another one */
  const ek_pass_segment *segments; /* pass: [segment_count] without sequence and output */
  int64_t segment_count;
  int64_t text_count;        /* committed: of ids, those that are text; what follows them pads a canvas behind its end */
} ek_ask;

/* What to do now, after what the last call told has been done. Fills *ask up to its struct_size. EK_INVALID_STATE after
 * a pass that has no answer; then and after any failure it asks the same again. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sampler_next(ek_sampler *sampler, ek_ask *ask) EK_NOEXCEPT;

/* The answer to a pass, which ek_sampler_next has asked for: arrays as in ek_head_output, those that the request needs,
 * argmax, others, entropy and log_z always, filled with ids of the vocabulary and numbers that are not NaN, others and
 * sample_prob not negative. The sample of row r is the token with the largest z + gumbel_scale * noise, computed in
 * float32, with the noise of ek_gumbel_noise for the request's seed and draw, all rows of the request, and row r of
 * them.
 * EK_INVALID_STATE where no pass waits for an answer, EK_NOT_FINITE where log_z or what the options make of the scores
 * is not finite, EK_INVALID_ARGUMENT for arrays that are missing or hold what no pass gives. After a failure the pass
 * is still asked for. `output` null: what was asked for was not done, a pass that failed as well as text that was not
 * encoded or forgotten; the next call asks for it again. What is told is told once. */
EK_API ek_status ek_sampler_answer(ek_sampler *sampler, const ek_head_output *output) EK_NOEXCEPT;

/* ek_sampler_answer for a pass of segments: `count` outputs, one for each of its segments that has a request, in their order. */
EK_API ek_status ek_sampler_answer_pass(ek_sampler *sampler, const ek_head_output *outputs, int64_t count) EK_NOEXCEPT;

/* ek_sampler_next with the passes and crops done: runs those that the sampler asks for over a sequence, null being the session's own,
 * and answers them. What is asked or told besides goes to *ask, as there; text that the sequence still lacks, or still has, is
 * asked for again. A pass that fails is asked for again by the next call, of either function. EK_INVALID_ARGUMENT for a
 * sampler of another vocabulary or hidden size (whether it is of the same bundle is the caller's to know),
 * EK_INVALID_STATE for a sequence that does not hold the sampler's text, those of ek_session_pass and ek_sampler_answer.
 * Where it asks for more of a pass that another has followed, that is run again. */
EK_API ek_status ek_session_run_sampler(ek_session *session, ek_sampler *sampler, ek_sequence *sequence,
                                        ek_ask *ask) EK_NOEXCEPT;

/* The number of the text that `count` token ids make behind another one, see ek_sequence_info.text and ek_ask.text: tells how
 * much of what is to be encoded is there already. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_text_number(uint64_t text, const int64_t *ids, int64_t count, uint64_t *number) EK_NOEXCEPT;

/* Ends the generation within `passes` further denoising passes, 1 or more: the last of them settles all that is open, so
 * that the answer is the best one that is known by then. A pass that was asked for before is not counted. The same calls at
 * the same places give the same tokens. EK_INVALID_ARGUMENT, EK_INVALID_STATE for a procedure that cannot. */
EK_API ek_status ek_sampler_hurry(ek_sampler *sampler, int64_t passes) EK_NOEXCEPT;

/* Draws from another seed from here on, so that copies of a sampler go on differently; what was drawn stays, and draws are
 * counted on. A step whose pass has no answer yet is begun again: next, it is asked for anew. A sampler goes on as one that
 * was reseeded at the same place with the same seed. EK_INVALID_ARGUMENT, EK_INVALID_STATE within such a step while its text is
 * encoded again. */
EK_API ek_status ek_sampler_reseed(ek_sampler *sampler, uint64_t seed) EK_NOEXCEPT;

/* Another sampler in the same state: it asks again for the pass or encoding that the original was asked for, and goes on
 * behind what was told. Two that go on over one model must each have it hold their own text, see
 * ek_sampler_restore. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sampler_copy(ek_sampler *sampler, ek_sampler **copy) EK_NOEXCEPT;

/* Asks for all text to be forgotten and encoded again, in the same pieces, before it goes on: for a model that holds
 * another text, or none. EK_INVALID_ARGUMENT. */
EK_API ek_status ek_sampler_restore(ek_sampler *sampler) EK_NOEXCEPT;

/* The state as bytes: `*size` of them go to `buffer`; a null buffer asks for the size alone. A step under way is begun
 * again when it is loaded, and what was told is not told again. EK_BUFFER_TOO_SMALL, EK_INVALID_STATE without
 * ek_sampler_model.bundle, EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sampler_save(ek_sampler *sampler, void *buffer, uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* The sampler that was saved, as after ek_sampler_restore. Over a model with the same numerics it goes on to the tokens
 * that the original would have come to, whatever its threads and memory. Of `model` the text that it holds does not
 * matter. The bytes may come from anybody: EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION and EK_CHECKSUM_MISMATCH for others
 * than ek_sampler_save made, EK_INVALID_ARGUMENT for those of another bundle or with options that no sampler
 * takes. EK_OUT_OF_MEMORY. */
EK_API ek_status ek_sampler_load(const ek_sampler_model *model, const void *state, uint64_t size,
                                 ek_sampler **sampler) EK_NOEXCEPT;

/* The standard Gumbel noise that ek_head_request.seed and draw stand for, for a head outside this library that works
 * through the vocabulary tile by tile: out[t * rows + r] is that of token first_token + t and row r of `rows`, which
 * must be all rows of the request. `out` has room for tokens * rows floats. The numbers are those of
 * runtime/native/src/kernels/noise.h, the same on every machine and in tiles of any size. EK_INVALID_ARGUMENT for a
 * negative number, more than 2^32 for first_token + tokens, more than 2^22 rows, or no room. */
EK_API ek_status ek_gumbel_noise(uint64_t seed, uint64_t draw, int64_t first_token, int64_t tokens, int64_t rows,
                                 float *out) EK_NOEXCEPT;

/* ---- Measuring ------------------------------------------------------------------------------------------------
 *
 * A bench looks on while a session runs: it is told when passes, the vocabulary head and reads begin and end, and looks at
 * the process's memory and the system's energy meters from a thread of its own. Its report is JSON, the same whatever
 * language asked for it; docs/bench.md describes it.
 *
 *   ek_bench_open(session, NULL, &bench);
 *   for (int i = 0; i < 5; ++i) ek_bench_generate(bench, "{\"test\": \"dg128\"}", prompt, count, NULL, NULL, NULL, NULL);
 *   ek_bench_get_report(bench, buffer, capacity, &size);
 *
 * Its functions must not be called by two threads at the same time, nor while the session is in another call, but for
 * ek_bench_tell. It must be closed before its session. */

typedef struct ek_bench ek_bench;

/* Joules since any moment, from a meter that the library does not know; negative: not known. Called often, from any
 * thread. */
typedef double (*ek_bench_joules)(void *user_data);

typedef struct ek_bench_options {
  uint32_t struct_size;
  uint32_t interval_milliseconds; /* between looks at memory and meters; 0: 20 */
  int64_t spans;                  /* reads, waits and uses of weights that a test keeps, the first of them; 0: none */
  const char *about;              /* a JSON object that the report has as "about": the application, "limits"; null: {} */
  ek_bench_joules joules;         /* in place of the meters that the library knows (RAPL, rails of Jetson boards, NVML);
                                     null: these */
  void *user_data;
} ek_bench_options;

#define EK_BENCH_OPTIONS_INIT {sizeof(ek_bench_options), 0, 0, NULL, NULL, NULL}

/* Null options are the defaults. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY; `*bench` is null after a failure. */
EK_API ek_status ek_bench_open(ek_session *session, const ek_bench_options *options, ek_bench **bench) EK_NOEXCEPT;

/* Ends it, and forgets a test that has begun; null is allowed. */
EK_API void ek_bench_close(ek_bench *bench) EK_NOEXCEPT;

/* From here on what the session does counts as a test, whose `label` is a JSON object; `prompt_tokens` of all its prompts
 * together. What was read ahead is dropped, as by ek_session_idle. EK_INVALID_ARGUMENT, EK_INVALID_STATE where one has begun. */
EK_API ek_status ek_bench_begin(ek_bench *bench, const char *label, int64_t prompt_tokens) EK_NOEXCEPT;

/* A generation of the test, `sequence` by number, told this now: for times to the first draft and the first committed
 * block. What its statistics are in the end is taken from the last event that has some. EK_INVALID_ARGUMENT, EK_INVALID_STATE. */
EK_API ek_status ek_bench_tell(ek_bench *bench, int64_t sequence, const ek_event *event) EK_NOEXCEPT;

/* The test is over. EK_INVALID_ARGUMENT, EK_INVALID_STATE where none has begun. */
EK_API ek_status ek_bench_end(ek_bench *bench) EK_NOEXCEPT;

/* Forgets the test that has begun, if there is one. EK_INVALID_ARGUMENT, EK_INVALID_STATE. */
EK_API ek_status ek_bench_drop(ek_bench *bench) EK_NOEXCEPT;

/* A test of one generation: ek_bench_begin, ek_generate, ek_bench_tell for each event, ek_bench_end. Where ek_generate
 * fails the test is forgotten; its status is returned. */
EK_API ek_status ek_bench_generate(ek_bench *bench, const char *label, const int64_t *prompt, int64_t count,
                                   const ek_generate_options *options, ek_event_callback callback, void *user_data,
                                   ek_generation_statistics *statistics) EK_NOEXCEPT;

/* All tests that are over, as JSON in `buffer` of `capacity` bytes, without a NUL; `*size` is its size in bytes, also where
 * `buffer` is null. EK_BUFFER_TOO_SMALL, EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_bench_get_report(ek_bench *bench, char *buffer, uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* The machine as reports have it, no name of a user, host or folder among it: JSON, as above. */
EK_API ek_status ek_describe_machine(char *buffer, uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* What a machine can do at most, measured. */
typedef struct ek_processor_probe {
  uint32_t struct_size;
  int32_t threads;
  double int8_operations;        /* per second, of loops on registers alone: a product and a sum are two */
  double float_operations;       /* the same of 32-bit floating point numbers */
  double memory_bytes;           /* read per second from memory that no cache holds */
  const char *int8_instructions; /* what the loops are made of; the library owns these */
  const char *float_instructions;
  /* What the native engine's kernels reach, with weights that no cache holds: products of 256 rows, and of 16, with 4-bit
   * weights, and attention of 256 rows over as many keys. */
  double product_operations;
  double few_row_operations;
  double attention_operations;
} ek_processor_probe;

/* On `threads` threads, 0 being every core that the process may use; takes about `seconds` for each figure. Nothing else
 * should run meanwhile. EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_probe_processor(int32_t threads, double seconds, ek_processor_probe *found) EK_NOEXCEPT;

typedef struct ek_disk_probe {
  uint32_t struct_size;
  int32_t direct; /* not 0: past the page cache; 0: the system has no way past it for this file, and it may be what was
                     measured */
  double bytes_per_second;
  double seconds;
  uint64_t bytes;
} ek_disk_probe;

/* Plain reads of a file by threads that do nothing else, round and round for about `seconds`. EK_INVALID_ARGUMENT, those of
 * reading, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_probe_disk(const char *path, double seconds, ek_disk_probe *found) EK_NOEXCEPT;

#define EK_LIMITS_SIZE 1024 /* bytes that are enough for ek_describe_limits */

/* Both probes as reports have them, the member "limits" of ek_bench_options.about: of all cores, and of the disk that the
 * weights of the bundle in folder `bundle` are on, null where nothing is known of it. Takes about `processor_seconds` for each
 * figure of the processor, and `disk_seconds`. JSON in `buffer`, without a NUL; `*size` becomes its size. It is to be asked
 * before a session is open, whose memory budget knows nothing of it. EK_BUFFER_TOO_SMALL where there is no room for
 * EK_LIMITS_SIZE, EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY. */
EK_API ek_status ek_describe_limits(const char *bundle, double processor_seconds, double disk_seconds, char *buffer,
                                    uint64_t capacity, uint64_t *size) EK_NOEXCEPT;

/* Physical memory of this process in bytes; 0 for what the system does not tell. */
typedef struct ek_process_memory {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t resident;  /* as ek_process_bytes */
  uint64_t anonymous; /* of it, what no file stands behind */
  uint64_t file;      /* pages of files and shared ones; on macOS and iOS they come on top */
  uint64_t peak;      /* the most that `resident` has been */
} ek_process_memory;

/* EK_INVALID_ARGUMENT. */
EK_API ek_status ek_process_get_memory(ek_process_memory *memory) EK_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* EDGEKIT_H */
