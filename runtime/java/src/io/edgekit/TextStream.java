package io.edgekit;

/**
 * Text of tokens that arrive in pieces. A character may be spread over several tokens, so what is not yet certain is held
 * back. It lives no longer than its tokenizer.
 */
public final class TextStream implements AutoCloseable {
  private final Handle tokenizer;
  private long pointer;

  TextStream(Handle tokenizer, long pointer) {
    this.tokenizer = tokenizer;
    this.pointer = pointer;
  }

  /**
   * Takes more tokens.
   *
   * @param tokens token ids
   * @return the text that has become certain; perhaps empty
   */
  public synchronized String push(int[] tokens) {
    if (tokens == null) throw new NullPointerException("tokens is null");
    return pushed(tokens);
  }

  /**
   * Says that no tokens follow for now: what was held back becomes certain, and what is incomplete in it U+FFFD.
   *
   * @return the rest of the text; perhaps empty
   */
  public synchronized String finish() {
    return pushed(null);
  }

  private String pushed(int[] tokens) {
    if (pointer == 0) throw new IllegalStateException("the text stream is closed");
    return Utf8.decode(tokenizer.use(text -> Native.streamPush(pointer, tokens)));
  }

  /** Gives its memory back; closing it again does nothing. */
  @Override
  public synchronized void close() {
    if (pointer != 0) Native.streamClose(pointer);
    pointer = 0;
  }
}
