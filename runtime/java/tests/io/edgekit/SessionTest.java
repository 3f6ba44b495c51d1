package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.edgekit.EdgeKitException.Status;
import io.edgekit.GenerationStatistics.FinishReason;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.function.Consumer;
import org.junit.Test;

public final class SessionTest {
  private static final String QUESTION = "Write as JSON: name: Ada; age: 31; city: Rome";
  private static final String ANSWER = "{\"name\": \"Ada\", \"age\": 31, \"city\": \"Rome\"}";
  private static final Consumer<Event> NOBODY = event -> {};

  /** All committed tokens of a generation with seed 1. */
  private static int[] answer(Session session, Consumer<Event> listener) {
    List<Integer> tokens = new ArrayList<>();
    session.generate(
        session.tokenizer().prompt(Message.user(QUESTION)),
        new GenerationSettings().seed(1),
        null,
        event -> {
          if (event instanceof Event.Committed) {
            for (int token : ((Event.Committed) event).tokens()) tokens.add(token);
          }
          listener.accept(event);
        });
    return tokens.stream().mapToInt(Integer::intValue).toArray();
  }

  @Test
  public void textComesOutOfText() {
    for (String bundle : new String[] {Bundles.GEMMA, Bundles.LLADA}) {
      try (Session session = Session.open(bundle)) {
        StringBuilder text = new StringBuilder();
        GenerationStatistics statistics = session.answer(QUESTION, text::append);
        assertEquals(ANSWER, text.toString());
        assertEquals(FinishReason.END_TOKEN, statistics.finishReason());
      }
    }
  }

  @Test
  public void draftsComeBeforeTheirCommitAndTextAfterIt() {
    try (Session session = Session.open(Bundles.GEMMA)) {
      List<Event> events = new ArrayList<>();
      int[] tokens = answer(session, events::add);
      StringBuilder text = new StringBuilder();
      int drafts = 0;
      boolean committed = false;
      for (Event event : events) {
        if (event instanceof Event.Draft) {
          Event.Draft draft = (Event.Draft) event;
          assertFalse("a draft of what is final", committed);
          assertEquals(++drafts, draft.step());
          assertEquals(draft.tokens().length, draft.accepted().length);
        } else if (event instanceof Event.Committed) {
          committed = true;
          assertEquals(drafts > 0, true);
        } else if (event instanceof Event.Text) {
          assertTrue("text of what is not final", committed);
          text.append(((Event.Text) event).text());
        }
      }
      assertTrue(events.get(events.size() - 1) instanceof Event.Done);
      assertEquals(session.tokenizer().decode(tokens, true), text.toString());
    }
  }

  @Test
  public void aScreenShowsWhatIsToldAndHowFastItComes() {
    for (String bundle : new String[] {Bundles.GEMMA, Bundles.LLADA}) {
      try (Session session = Session.open(bundle)) {
        CanvasText canvas = new CanvasText(session.tokenizer());
        StringBuilder text = new StringBuilder();
        List<String> seen = new ArrayList<>();
        double[] seconds = {0};
        long began = System.nanoTime();
        int[] tokens = answer(
            session,
            event -> {
              canvas.fold(event);
              seen.add(canvas.text());
              if (event instanceof Event.Text) text.append(((Event.Text) event).text());
              if (!(event instanceof Event.Committed)) return;
              GenerationStatistics soFar = ((Event.Committed) event).statistics();
              assertSame(soFar, canvas.statistics());
              assertEquals(FinishReason.NONE, soFar.finishReason());
              assertTrue(soFar.seconds() > seconds[0] && soFar.tokensPerSecond() > 0);
              seconds[0] = soFar.seconds();
            });
        double took = (System.nanoTime() - began) * 1e-9;
        boolean open = seen.stream().anyMatch(each -> each.contains(CanvasText.OPEN));
        assertEquals(seen.toString(), bundle.equals(Bundles.LLADA), open);  // the other family guesses at every place
        assertTrue(seen.toString(), seen.stream().anyMatch(each -> each.contains(CanvasText.SPECIAL)));
        assertEquals(text.toString(), seen.get(seen.size() - 1));
        assertArrayEquals(tokens, canvas.answer());
        GenerationStatistics whole = canvas.statistics();
        assertTrue(whole.seconds() >= seconds[0] && whole.seconds() <= took);
        assertEquals(whole.committedTokens(), whole.tokensPerSecond() * whole.seconds(), 1e-6);
      }
    }
    assertEquals(0, GenerationStatistics.STOPPED.tokensPerSecond(), 0);
  }

  @Test
  public void aCancelledGenerationLeavesNothingBehind() {
    try (Session session = Session.open(Bundles.LLADA)) {
      int[] whole = answer(session, NOBODY);
      Cancellation cancellation = new Cancellation();
      int[] told = {0};
      int[] prompt = session.tokenizer().prompt(Message.user("Copy this: red 7"));
      GenerationStatistics statistics = session.generate(
          prompt,
          new GenerationSettings(),
          cancellation,
          event -> {
            assertTrue(event instanceof Event.Draft);
            if (++told[0] == 3) cancellation.cancel();
          });
      assertEquals(FinishReason.STOPPED, statistics.finishReason());
      assertEquals(3, told[0]);
      assertEquals(3, statistics.denoisingSteps());
      // One that was cancelled before it began.
      assertEquals(
          FinishReason.STOPPED,
          session.generate(prompt, new GenerationSettings(), cancellation, event -> told[0] = 99).finishReason());
      assertEquals(3, told[0]);
      assertArrayEquals(whole, answer(session, NOBODY));
    }
  }

  @Test
  public void anInterruptCancels() {
    try (Session session = Session.open(Bundles.LLADA)) {
      Thread.currentThread().interrupt();
      GenerationStatistics statistics =
          session.generate(new int[] {5, 6}, new GenerationSettings(), null, NOBODY);
      assertTrue("the interrupt was lost", Thread.interrupted());
      assertEquals(FinishReason.STOPPED, statistics.finishReason());
    }
  }

  @Test
  public void whatAListenerThrowsIsThrown() {
    try (Session session = Session.open(Bundles.GEMMA)) {
      int[] whole = answer(session, NOBODY);
      for (Class<?> kind : new Class<?>[] {Event.Draft.class, Event.Committed.class, Event.Text.class, Event.Done.class}) {
        RuntimeException own = new RuntimeException("of the application");
        RuntimeException thrown = assertThrows(
            RuntimeException.class,
            () ->
                answer(
                    session,
                    event -> {
                      if (kind.isInstance(event)) throw own;
                    }));
        assertSame(own, thrown);
      }
      assertArrayEquals(whole, answer(session, NOBODY));
    }
  }

  @Test
  public void aListenerCannotCallItsSession() {
    try (Session session = Session.open(Bundles.GEMMA)) {
      List<Runnable> calls = Arrays.asList(
          session::info, session::statistics, session::reset, () -> answer(session, NOBODY));
      for (Runnable call : calls) {
        IllegalStateException error =
            assertThrows(IllegalStateException.class, () -> answer(session, event -> call.run()));
        assertTrue(error.getMessage(), error.getMessage().contains("listener"));
      }
      assertTrue(answer(session, event -> session.tokenizer().encode("a", false)).length > 0);
    }
  }

  @Test
  public void aListenerMayClose() {
    Session session = Session.open(Bundles.LLADA);
    List<Event> events = new ArrayList<>();
    answer(
        session,
        event -> {
          events.add(event);
          session.close();
        });
    assertEquals(1, events.size());
    assertThrows(IllegalStateException.class, session::info);
    session.limitResident(0);
    session.close();
  }

  @Test
  public void closingEndsWhatRunsElsewhere() throws Exception {
    Session session = Session.open(Bundles.LLADA);
    CountDownLatch begun = new CountDownLatch(1);
    ConcurrentLinkedQueue<Object> found = new ConcurrentLinkedQueue<>();
    Thread worker = new Thread(
        () -> {
          try {
            found.add(
                session.generate(
                        new int[] {5, 6},
                        new GenerationSettings().steps(64).maxNewTokens(64),
                        null,
                        event -> begun.countDown())
                    .finishReason());
          } catch (RuntimeException error) {
            found.add(error);
          }
        });
    worker.start();
    begun.await();
    session.close();
    worker.join();
    assertEquals(FinishReason.STOPPED, found.peek());
  }

  @Test
  public void callsOfSeveralThreadsComeOneAfterTheOther() throws Exception {
    try (Session session = Session.open(Bundles.GEMMA)) {
      int[] whole = answer(session, NOBODY);
      ConcurrentLinkedQueue<Object> found = new ConcurrentLinkedQueue<>();
      List<Thread> workers = new ArrayList<>();
      for (int index = 0; index < 4; ++index) {
        Thread worker = new Thread(() -> found.add(Arrays.toString(answer(session, NOBODY))));
        worker.start();
        workers.add(worker);
      }
      for (Thread worker : workers) worker.join();
      assertEquals(4, found.size());
      for (Object each : found) assertEquals(Arrays.toString(whole), each);
    }
  }

  @Test
  public void whoWaitsForAnotherGenerationCanBeCancelled() throws Exception {
    try (Session session = Session.open(Bundles.LLADA)) {
      CountDownLatch begun = new CountDownLatch(1);
      CountDownLatch ended = new CountDownLatch(1);
      Thread other = new Thread(
          () ->
              session.generate(
                  new int[] {5, 6},
                  new GenerationSettings(),
                  null,
                  event -> {
                    begun.countDown();
                    try {
                      ended.await();
                    } catch (InterruptedException error) {
                      throw new AssertionError(error);
                    }
                  }));
      other.start();
      begun.await();
      Cancellation cancellation = new Cancellation();
      cancellation.cancel();
      assertEquals(
          FinishReason.STOPPED,
          session.generate(new int[] {5, 6}, new GenerationSettings(), cancellation, NOBODY).finishReason());
      Thread.currentThread().interrupt();
      assertEquals(
          FinishReason.STOPPED,
          session.generate(new int[] {5, 6}, new GenerationSettings(), null, NOBODY).finishReason());
      assertTrue("the interrupt was lost", Thread.interrupted());
      ended.countDown();
      other.join();
    }
  }

  @Test
  public void aSessionsTokenizerEndsWithIt() {
    Session session = Session.open(Bundles.GEMMA);
    session.tokenizer().close();
    StringBuilder text = new StringBuilder();
    session.answer(QUESTION, text::append);
    assertEquals(ANSWER, text.toString());
    Tokenizer tokenizer = session.tokenizer();
    session.close();
    assertThrows(IllegalStateException.class, () -> tokenizer.encode("a", false));
    IllegalStateException error =
        assertThrows(IllegalStateException.class, () -> session.answer("a", part -> {}));
    assertEquals("the session is closed", error.getMessage());
  }

  @Test
  public void whatIsNullIsNamed() {
    try (Session session = Session.open(Bundles.GEMMA)) {
      Object[][] each = {
        {"the path", (Runnable) () -> Session.open(null)},
        {"the path", (Runnable) () -> Bundle.open(null)},
        {"the text", (Runnable) () -> session.tokenizer().encode(null, true)},
        {"conversation", (Runnable) () -> session.tokenizer().prompt((Message[]) null)},
        {"a message", (Runnable) () -> session.tokenizer().prompt((Message) null)},
        {"listener", (Runnable) () -> session.answer("a", null)},
        {"settings", (Runnable) () -> session.generate(new int[] {5}, null, null, NOBODY)},
        {"the name", (Runnable) () -> new GenerationSettings().option(null, 1)},
      };
      for (Object[] one : each) {
        NullPointerException error = assertThrows(NullPointerException.class, ((Runnable) one[1])::run);
        assertTrue(error.getMessage(), error.getMessage().startsWith((String) one[0]));
      }
      assertThrows(IllegalArgumentException.class, () -> Session.open(""));
    }
  }

  @Test
  public void weightsThatAreGivenBackStream() {
    try (Session session = Session.open(Bundles.LLADA)) {
      int[] whole = answer(session, NOBODY);
      long pinned = session.statistics().pinnedBytes();
      assertTrue(pinned > 0);
      assertEquals(0, session.statistics().bytesRead());
      int[] step = {0};
      int[] told = answer(
          session,
          event -> {  // ComponentCallbacks2's levels
            if (++step[0] == 2) session.onTrimMemory(20);
            if (step[0] == 4) session.onTrimMemory(10);
            if (step[0] == 8) session.onTrimMemory(15);
          });
      assertArrayEquals(whole, told);
      assertEquals(0, session.statistics().pinnedBytes());
      assertTrue(session.statistics().bytesRead() > pinned);
      assertArrayEquals(whole, answer(session, NOBODY));
    }
  }

  @Test
  public void anIdleSessionGivesWeightsBackToo() throws Exception {
    try (Session session = Session.open(Bundles.LLADA)) {
      session.onTrimMemory(40);
      while (session.statistics().pinnedBytes() > 0) Thread.sleep(5);
    }
  }

  @Test
  public void aBudgetThatIsTooSmallSaysWhatIsEnough() {
    SessionOptions options = new SessionOptions().memoryBytes(1000);
    EdgeKitException error =
        assertThrows(EdgeKitException.class, () -> Session.open(Bundles.LLADA, options));
    assertEquals(Status.BUDGET_EXCEEDED, error.status());
    assertTrue(error.getMessage(), error.sufficientBytes() > 1000);
    // The process has grown a little since it was asked.
    options.memoryBytes(error.sufficientBytes() + (64 << 20));
    try (Session session = Session.open(Bundles.LLADA, options)) {
      assertTrue(answer(session, NOBODY).length > 0);
    }
  }

  @Test
  public void aChatGoesOnWithinABudget() {
    for (String bundle : new String[] {Bundles.GEMMA, Bundles.LLADA}) {
      List<String> expected = chat(bundle, new SessionOptions());
      assertEquals(expected, chat(bundle, new SessionOptions().memoryBytes(1_500_000_000L)));
      // Lengths that every turn goes beyond.
      SessionOptions little = new SessionOptions().memoryBytes(1_500_000_000L).positions(0).canvas(128);
      assertEquals(expected, chat(bundle, little));
    }
  }

  private static List<String> chat(String bundle, SessionOptions options) {
    String[] ends = {"", ".", " now", " please"};
    List<Message> turns = new ArrayList<>();
    List<String> answers = new ArrayList<>();
    try (Session session = Session.open(bundle, options)) {
      for (int turn = 0; turn < ends.length; ++turn) {
        turns.add(Message.user(QUESTION + ends[turn]));
        StringBuilder text = new StringBuilder();
        session.answer(turns, new GenerationSettings().seed(1).steps(4), null, text::append);
        turns.add(Message.assistant(text.toString()));
        answers.add(text.toString());
      }
    }
    return answers;
  }

  @Test
  public void aDamagedBundleIsAnException() {
    EdgeKitException error = assertThrows(EdgeKitException.class, () -> Session.open(Bundles.DAMAGED));
    assertEquals(Status.CHECKSUM_MISMATCH, error.status());
    assertTrue(error.getMessage(), error.getMessage().contains(Bundles.DAMAGED));
    // Streamed weights are compared when they are read.
    try (Session session = Session.open(Bundles.DAMAGED, new SessionOptions().residentBytes(0))) {
      EdgeKitException later = assertThrows(EdgeKitException.class, () -> answer(session, NOBODY));
      assertEquals(Status.CHECKSUM_MISMATCH, later.status());
    }
  }

  @Test
  public void withoutATokenizerThereAreIds() {
    try (Session session = Session.open(Bundles.BARE)) {
      List<Event> events = new ArrayList<>();
      session.generate(new int[] {5, 6}, new GenerationSettings().maxNewTokens(8), null, events::add);
      assertFalse(events.stream().anyMatch(event -> event instanceof Event.Text));
      assertThrows(EdgeKitException.class, session::tokenizer);
      assertThrows(EdgeKitException.class, () -> session.answer("a", part -> {}));
    }
  }

  @Test
  public void settingsAreChecked() {
    try (Session session = Session.open(Bundles.LLADA)) {
      int[] prompt = {5, 6};
      for (GenerationSettings wrong : Arrays.asList(
          new GenerationSettings().option("no_such \"option\"", 1),
          new GenerationSettings().option("temperature", -1.0),
          new GenerationSettings().option("temperature", "warm\n\u0001"))) {
        EdgeKitException error =
            assertThrows(EdgeKitException.class, () -> session.generate(prompt, wrong, null, NOBODY));
        assertEquals(Status.INVALID_ARGUMENT, error.status());
      }
      EdgeKitException longer = assertThrows(
          EdgeKitException.class,
          () -> session.generate(prompt, new GenerationSettings().maxNewTokens(1 << 20), null, NOBODY));
      assertEquals(longer.getMessage(), Status.PROMPT_TOO_LONG, longer.status());
      assertThrows(IllegalArgumentException.class, () -> new GenerationSettings().option("temperature", Double.NaN));
      assertThrows(IllegalArgumentException.class, () -> new GenerationSettings().steps(0));
      assertThrows(IllegalArgumentException.class, () -> new GenerationSettings().maxNewTokens(-1));
      assertThrows(IllegalArgumentException.class, () -> session.limitResident(-1));
      for (int[] odd : new int[][] {{-1}, {Integer.MAX_VALUE}}) {
        assertThrows(
            EdgeKitException.class, () -> session.generate(odd, new GenerationSettings(), null, NOBODY));
      }
      assertThrows(
          NullPointerException.class, () -> session.generate(null, new GenerationSettings(), null, NOBODY));
      assertThrows(NullPointerException.class, () -> session.generate(prompt, new GenerationSettings(), null, null));
      assertTrue(answer(session, NOBODY).length > 0);
    }
  }

  @Test
  public void aSessionKnowsItsModel() {
    try (Session session = Session.open(Bundles.GEMMA, new SessionOptions().threads(1))) {
      SessionInfo info = session.info();
      assertEquals(1, info.threads());
      assertEquals(128, info.canvasLength());
      assertTrue(info.causalPrefix());
      assertEquals(0, info.prefixLength());
      assertTrue(info.vocabulary() > 1);
      answer(session, NOBODY);
      assertTrue(session.info().prefixLength() > 0);
      session.reset();
      assertEquals(0, session.info().prefixLength());
      assertTrue(Library.processBytes() > 0);
      assertTrue(Library.version().matches("\\d+\\.\\d+\\.\\d+"));
    }
  }
}
