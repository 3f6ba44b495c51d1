package io.edgekit;

import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** Events of one generation, made from what the native code tells, with the text of its committed tokens. */
final class Told implements Native.Sink, AutoCloseable {
  private final Consumer<Event> listener;
  private final BooleanSupplier goesOn;
  private final TextStream text;

  /** Of no tokenizer, null, there is no text. */
  Told(Consumer<Event> listener, Tokenizer tokenizer, BooleanSupplier goesOn) {
    this.listener = listener;
    this.goesOn = goesOn;
    text = tokenizer == null ? null : tokenizer.stream(true);
  }

  @Override
  public boolean draft(long canvas, long step, long start, int[] tokens, boolean[] accepted) {
    listener.accept(new Event.Draft(canvas, step, start, tokens, accepted));
    return goesOn.getAsBoolean();
  }

  @Override
  public boolean committed(long canvas, long start, int[] tokens, GenerationStatistics statistics) {
    listener.accept(new Event.Committed(canvas, start, tokens, statistics));
    if (text != null) tell(text.push(tokens));
    return goesOn.getAsBoolean();
  }

  void done(GenerationStatistics statistics) {
    if (text != null) tell(text.finish());
    listener.accept(new Event.Done(statistics));
  }

  private void tell(String part) {
    if (!part.isEmpty()) listener.accept(new Event.Text(part));
  }

  @Override
  public void close() {
    if (text != null) text.close();
  }
}
