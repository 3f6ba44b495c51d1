package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import org.junit.Test;

public final class TokenizerTest {
  @Test
  public void aCharacterMayBeSpreadOverTokens() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.LLADA);
        TextStream stream = tokenizer.stream(true)) {
      int[] ids = tokenizer.encode("🦊", false);
      assertTrue("the tokenizer has the character as one token", ids.length > 1);
      for (int id : Arrays.copyOf(ids, ids.length - 1)) assertEquals("", stream.push(new int[] {id}));
      assertEquals("🦊", stream.push(new int[] {ids[ids.length - 1]}) + stream.finish());
      stream.push(new int[] {ids[0]});
      assertEquals("\uFFFD", stream.finish());
    }
  }

  @Test
  public void textIsUnicode() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.GEMMA)) {
      assertThrows(IllegalArgumentException.class, () -> tokenizer.encode("a\ud83e", false));
      String odd = "a\0b\u0301 𝕏 \uFFFF";
      assertEquals(odd, tokenizer.decode(tokenizer.encode(odd, false), false));
    }
  }

  @Test
  public void conversationsHaveAnOrder() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.GEMMA)) {
      Message question = Message.user("Copy this: red 7");
      assertArrayEquals(
          tokenizer.encode(tokenizer.chat(Arrays.asList(question)), false), tokenizer.prompt(question));
      EdgeKitException error =
          assertThrows(EdgeKitException.class, () -> tokenizer.prompt(question, question));
      assertEquals(EdgeKitException.Status.INVALID_ARGUMENT, error.status());
      assertThrows(EdgeKitException.class, () -> tokenizer.prompt());
    }
  }

  @Test
  public void tokensAreFoundByTheirSpelling() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.LLADA)) {
      assertEquals(-1, tokenizer.find("no such token"));
      int[] ids = tokenizer.encode("a", false);
      assertEquals(ids[0], tokenizer.find("a"));
    }
  }

  @Test
  public void aTextGoesOnBehindAnotherOne() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.PIECES)) {
      int[] alone = tokenizer.encode("cat", false);
      int[] behind = tokenizer.encodeBehind("cat");
      assertFalse("the tokenizer puts no space in front of a text", Arrays.equals(alone, behind));
      int[] first = tokenizer.encode("the ", false);
      int[] both = Arrays.copyOf(first, first.length + behind.length);
      System.arraycopy(behind, 0, both, first.length, behind.length);
      assertEquals("the cat", tokenizer.decode(both, false));
      assertArrayEquals(new int[0], tokenizer.encodeBehind(""));
      assertThrows(NullPointerException.class, () -> tokenizer.encodeBehind(null));
      int count = tokenizer.count();
      assertFalse(tokenizer.decode(new int[] {count - 1}, false).isEmpty());
      assertEquals("", tokenizer.decode(new int[] {count}, false));
    }
  }

  @Test
  public void idsThatAreNoTokensHaveNoText() {
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.LLADA)) {
      assertEquals("", tokenizer.decode(new int[] {Integer.MAX_VALUE}, false));
      assertEquals("", tokenizer.decode(new int[0], false));
      assertThrows(NullPointerException.class, () -> tokenizer.decode(null, false));
    }
  }

  @Test
  public void aStreamLivesNoLongerThanItsTokenizer() {
    Tokenizer tokenizer = Tokenizer.open(Bundles.LLADA);
    TextStream stream = tokenizer.stream(true);
    tokenizer.close();
    assertThrows(IllegalStateException.class, () -> stream.push(new int[] {1}));
    stream.close();
    stream.close();
    assertThrows(IllegalStateException.class, stream::finish);
    assertThrows(IllegalStateException.class, () -> tokenizer.encode("a", false));
  }
}
