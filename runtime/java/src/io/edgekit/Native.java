package io.edgekit;

import java.util.function.DoubleSupplier;

/** The functions of libedgekit_jni, over the C ABI. Handles are pointers; the classes of this package guard them. */
final class Native {
  static {
    System.loadLibrary("edgekit_jni");
  }

  private Native() {}

  /** Told between two passes. Whatever it throws ends the generation. */
  interface Sink {
    boolean draft(long canvas, long step, long start, int[] tokens, boolean[] accepted);

    boolean committed(long canvas, long start, int[] tokens, GenerationStatistics statistics);
  }

  static native byte[] version();

  static native long processBytes();

  static native long bundleOpen(byte[] path);

  static native boolean bundleExists(byte[] path);

  static native void bundleClose(long bundle);

  static native byte[] bundleManifest(long bundle);

  static native byte[] bundleRead(long bundle, byte[] name);

  static native void bundleCheck(long bundle, byte[] name);

  static native long textOpen(byte[] bundle);

  static native void textClose(long text);

  static native long textFind(long text, byte[] token);

  static native long textCount(long text);

  static native int[] textEncode(long text, byte[] utf8, boolean addSpecial);

  static native int[] textEncodeBehind(long text, byte[] utf8);

  static native byte[] textDecode(long text, int[] tokens, boolean skipSpecial);

  static native byte[] textChat(long text, byte[][] roles, byte[][] contents);

  static native long streamOpen(long text, boolean skipSpecial);

  static native void streamClose(long stream);

  /** Text that has become certain; null tokens end the stream. */
  static native byte[] streamPush(long stream, int[] tokens);

  /**
   * Cells, and those that are given, are three numbers each: place, token, state. `kind` is a number of EK_EVENT_, `accepted`
   * null but for drafts, `mask` negative where there is none.
   */
  static native long[] canvasFold(long[] cells, int kind, long start, int[] tokens, boolean[] accepted, long mask);

  /** The states of parts, a byte each, and behind them their texts. */
  static native byte[][] canvasDraw(long text, long[] cells);

  /** Members of ek_qnn_options; each may be null. */
  static native void npuLoad(byte[] onnxRuntime, byte[] provider, byte[] backend, byte[] chip, byte[] socModel);

  /** Members of ek_session_options in their order. */
  static native long sessionOpen(byte[] bundle, long[] options);

  static native void sessionClose(long session);

  static native SessionInfo sessionInfo(long session);

  static native SessionStatistics sessionStatistics(long session);

  static native void sessionReset(long session);

  static native void sessionIdle(long session);

  static native void sessionLimitResident(long session, long bytes);

  /** `options` may be null, `bench` and `forwards` 0; a stop is no error. */
  static native GenerationStatistics generate(
      long session,
      int[] prompt,
      long seed,
      long maxNewTokens,
      long steps,
      byte[] options,
      Sink sink,
      long bench,
      long forwards);

  /** `meter` may be null. */
  static native long benchOpen(long session, byte[] about, long spans, DoubleSupplier meter);

  static native void benchClose(long bench);

  static native void benchBegin(long bench, byte[] label, long promptTokens);

  static native void benchEnd(long bench);

  static native void benchDrop(long bench);

  static native byte[] benchReport(long bench);

  static native byte[] limits(byte[] bundle, double processorSeconds, double diskSeconds);

  /** `sha256`, `system` and its `version` may be null, `formats` too: those of sessions. `requestBytes` 0 is the library's own. */
  static native long fetchOpen(
      byte[] folder,
      byte[][] sources,
      byte[] sha256,
      byte[][] formats,
      byte[] system,
      byte[] version,
      boolean compare,
      long requestBytes,
      boolean keepFormat);

  static native void fetchClose(long fetch);

  /** The file's name, or null where there is no request; the step and members of ek_fetch_request into `numbers`. */
  static native byte[] fetchNext(long fetch, long[] numbers);

  /** `contentRange` may be null. */
  static native void fetchAnswer(long fetch, long request, int status, byte[] contentRange);

  /** False: no more of it are needed. */
  static native boolean fetchWrite(long fetch, long request, byte[] data, int offset, int count);

  /** `why` may be null. */
  static native void fetchEnd(long fetch, long request, byte[] why);

  static native void fetchReturn(long fetch, long request);

  /**
   * Where what has arrived lies, and the bundle that was chosen, which may be null; other members of ek_fetch_info into
   * `numbers`, in their order.
   */
  static native byte[][] fetchInfo(long fetch, long[] numbers);

  static native void fetchFinish(long fetch);

  static native void fetchDiscard(long fetch);
}
