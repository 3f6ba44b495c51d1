package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.edgekit.CanvasText.Cell;
import io.edgekit.CanvasText.Part;
import io.edgekit.CanvasText.State;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.Test;

public final class CanvasTextTest {
  /** Of Bundles.BYTES. */
  private static final int MASK = 260;

  private static Event draft(long step, long start, int[] tokens, boolean... accepted) {
    return new Event.Draft(0, step, start, tokens, accepted);
  }

  private static Event committed(long start, int... tokens) {
    return new Event.Committed(0, start, tokens, GenerationStatistics.STOPPED);
  }

  private static List<State> states(CanvasText canvas) {
    return canvas.cells().stream().map(Cell::state).collect(Collectors.toList());
  }

  @Test
  public void aTokenKeepsTheSpaceInFrontOfIt() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.PIECES)) {
      int[] ids = tokenizer.encode("the cat is red", false);
      assertTrue("each token has its space when it is alone", Arrays.stream(ids)
          .mapToObj(id -> tokenizer.decode(new int[] {id}, true)).noneMatch(each -> each.startsWith(" ")));
      CanvasText canvas = new CanvasText(tokenizer);
      canvas.fold(draft(1, 0, ids, new boolean[ids.length]));
      assertEquals(Collections.singletonList(new Part("the cat is red", State.DRAFT)), canvas.parts());
      int half = ids.length / 2;
      canvas.fold(committed(0, Arrays.copyOf(ids, half)));
      canvas.fold(draft(1, half, Arrays.copyOfRange(ids, half, ids.length), new boolean[ids.length - half]));
      assertEquals("the cat is red", canvas.text());
      assertEquals(tokenizer.decode(canvas.answer(), true), canvas.parts().get(0).text());
    }
  }

  @Test
  public void aCharacterOfSeveralTokensIsDrawnOnce() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.BYTES)) {
      int[] ids = tokenizer.encode("a🦊b", false);
      assertEquals(6, ids.length);
      CanvasText canvas = new CanvasText(tokenizer);
      canvas.fold(draft(1, 0, ids, true, true, true, false, true, true));
      canvas.fold(draft(2, 0, ids, false, false, true, false, false, false));
      List<Part> all = Collections.singletonList(new Part("a🦊b", State.KEPT));
      assertEquals(all, canvas.parts());
      canvas.fold(committed(0, ids[0], ids[1]));
      assertEquals(Arrays.asList(State.COMMITTED, State.COMMITTED), states(canvas).subList(0, 2));
      assertEquals("a🦊b", canvas.text());  // it is final in part, and drawn with what follows
      assertEquals(new Part("a", State.COMMITTED), canvas.parts().get(0));
      ids[4] = MASK;
      canvas.fold(draft(3, 0, ids, new boolean[ids.length]));
      assertTrue(canvas.text(), canvas.text().endsWith("\uFFFD" + CanvasText.OPEN + "b"));
    }
  }

  @Test
  public void maskedFamiliesKeepWhatOthersDrawAnew() {
    try (Tokenizer bytes = Tokenizer.open(Bundles.BYTES);
        Tokenizer pieces = Tokenizer.open(Bundles.PIECES)) {
      CanvasText masked = new CanvasText(bytes);
      CanvasText other = new CanvasText(pieces);
      for (CanvasText each : Arrays.asList(masked, other)) {
        each.fold(draft(1, 0, new int[] {97, MASK, MASK, 98}, true, false, false, true));
        each.fold(draft(2, 0, new int[] {97, 99, MASK, 98}, false, true, false, false));
        assertEquals(2, each.step());
      }
      assertEquals(Arrays.asList(State.KEPT, State.ACCEPTED, State.OPEN, State.KEPT), states(masked));
      assertEquals(Arrays.asList(State.DRAFT, State.ACCEPTED, State.DRAFT, State.DRAFT), states(other));
      for (CanvasText each : Arrays.asList(masked, other)) {
        assertNull(each.statistics());
        each.fold(committed(0, 97, 99));
        assertEquals(0, each.step());
        assertEquals(GenerationStatistics.STOPPED, each.statistics());
        assertArrayEquals(new int[] {97, 99}, each.answer());
      }
      List<State> stays = Arrays.asList(State.COMMITTED, State.COMMITTED, State.OPEN, State.KEPT);
      assertEquals(stays, states(masked));
      assertEquals(2, other.cells().size());
      masked.fold(new Event.Text("ac"));
      assertEquals(stays, states(masked));
      masked.fold(new Event.Done(GenerationStatistics.STOPPED));
      assertEquals(stays.subList(0, 2), states(masked));
    }
  }

  @Test
  public void whatCannotBeDrawnIsRefused() {
    Tokenizer tokenizer = Tokenizer.open(Bundles.BYTES);
    CanvasText canvas = new CanvasText(tokenizer);
    assertTrue(canvas.cells().isEmpty() && canvas.parts().isEmpty() && canvas.text().isEmpty());
    assertThrows(NullPointerException.class, () -> new CanvasText(null));
    assertThrows(NullPointerException.class, () -> canvas.fold(null));
    assertThrows(IllegalArgumentException.class, () -> canvas.fold(draft(1, 0, new int[] {97}, true, true)));
    EdgeKitException error = assertThrows(EdgeKitException.class, () -> canvas.fold(committed(-1, 97)));
    assertEquals(EdgeKitException.Status.INVALID_ARGUMENT, error.status());
    canvas.fold(committed(0, 97));
    assertFalse(canvas.cells().isEmpty());
    tokenizer.close();
    assertThrows(IllegalStateException.class, canvas::parts);
  }
}
