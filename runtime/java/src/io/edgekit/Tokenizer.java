package io.edgekit;

import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Text to token ids and back, and conversations as the model's chat template writes them. Different threads may use it at
 * the same time.
 */
public final class Tokenizer implements AutoCloseable {
  /** In the sampler's section of a manifest, under either of its names. */
  private static final Pattern MASK = Pattern.compile("\"mask(?:_token)?_id\"\\s*:\\s*(\\d{1,9})\\b");

  private final Handle handle;
  private final boolean borrowed;
  private final int mask;

  private Tokenizer(Handle handle, boolean borrowed, int mask) {
    this.handle = handle;
    this.borrowed = borrowed;
    this.mask = mask;
  }

  /**
   * Opens the tokenizer of a bundle. A {@link Session} has one already.
   *
   * @param bundle its folder, or one with several, as {@link Session#open(String, SessionOptions)} takes it
   * @return the tokenizer, to be closed
   * @throws EdgeKitException for a bundle that is damaged or has none, or one that the library does not read
   */
  public static Tokenizer open(String bundle) {
    return open(bundle, false);
  }

  /** A session's own, of which others close nothing. */
  static Tokenizer open(String bundle, boolean borrowed) {
    int mask = maskOf(bundle);
    Handle handle = new Handle("tokenizer", Native.textOpen(Utf8.path(bundle)), Native::textClose);
    return new Tokenizer(handle, borrowed, mask);
  }

  /** How places that are open are drawn depends on it, and nothing else: no parser of JSON is needed for that. */
  private static int maskOf(String path) {
    try (Bundle bundle = Bundle.open(path)) {
      String manifest = bundle.manifest();
      Matcher found = MASK.matcher(manifest);
      return found.find(Math.max(0, manifest.indexOf("\"sampler\""))) ? Integer.parseInt(found.group(1)) : -1;
    }
  }

  /** See {@link Native#canvasDraw}. */
  byte[][] draw(long[] cells) {
    return handle.use(text -> Native.canvasDraw(text, cells));
  }

  /** The token of places that a masked family leaves open; -1 where the family has none. */
  int mask() {
    return mask;
  }

  /**
   * Looks a token up.
   *
   * @param token exactly as it is spelled
   * @return its id; -1 where there is none
   */
  public int find(String token) {
    return handle.use(text -> (int) Native.textFind(text, Utf8.name(token, "the token")));
  }

  /**
   * Counts the tokens that have a text.
   *
   * @return their number; the model may know more ids than that
   */
  public int count() {
    return handle.use(text -> (int) Native.textCount(text));
  }

  /**
   * Encodes a text.
   *
   * @param text any text
   * @param addSpecial whether with what the tokenizer puts around a text
   * @return token ids
   */
  public int[] encode(String text, boolean addSpecial) {
    return handle.use(own -> Native.textEncode(own, Utf8.encode(text, "the text"), addSpecial));
  }

  /**
   * Encodes a text that goes on behind another one, as the next turn of a conversation does: nothing is put in front of it or
   * around it, and no token of it reaches into what is before.
   *
   * @param text any text
   * @return token ids
   */
  public int[] encodeBehind(String text) {
    return handle.use(own -> Native.textEncodeBehind(own, Utf8.encode(text, "the text")));
  }

  /**
   * Decodes tokens. Bytes that are no text become U+FFFD.
   *
   * @param tokens token ids
   * @param skipSpecial whether to leave special tokens out
   * @return their text
   */
  public String decode(int[] tokens, boolean skipSpecial) {
    if (tokens == null) throw new NullPointerException("tokens is null");
    return Utf8.decode(handle.use(text -> Native.textDecode(text, tokens, skipSpecial)));
  }

  /**
   * Writes a conversation as the model's chat template does, with the opening of the answer behind it.
   *
   * @param conversation perhaps a system message, then the user's and the assistant's in turn, the last of them the
   *     user's
   * @return text to be encoded without special tokens around it
   * @throws EdgeKitException INVALID_STATE where the bundle has no form of its template, INVALID_ARGUMENT for another
   *     order
   */
  public String chat(List<Message> conversation) {
    if (conversation == null) throw new NullPointerException("conversation is null");
    byte[][] roles = new byte[conversation.size()][];
    byte[][] contents = new byte[conversation.size()][];
    for (int index = 0; index < roles.length; ++index) {
      if (conversation.get(index) == null) throw new NullPointerException("a message is null");
      roles[index] = Utf8.name(conversation.get(index).role(), "a role");
      contents[index] = Utf8.encode(conversation.get(index).content(), "a message");
    }
    return Utf8.decode(handle.use(text -> Native.textChat(text, roles, contents)));
  }

  /**
   * Makes the prompt of a conversation, see {@link #chat}.
   *
   * @param conversation its messages
   * @return token ids for {@link Session#generate}
   */
  public int[] prompt(List<Message> conversation) {
    return encode(chat(conversation), false);
  }

  /**
   * Makes the prompt of a conversation, see {@link #chat}.
   *
   * @param conversation its messages
   * @return token ids for {@link Session#generate}
   */
  public int[] prompt(Message... conversation) {
    if (conversation == null) throw new NullPointerException("conversation is null");
    return prompt(Arrays.asList(conversation));
  }

  /**
   * Opens a stream for the text of tokens that arrive in pieces.
   *
   * @param skipSpecial whether to leave special tokens out
   * @return the stream, to be closed
   */
  public TextStream stream(boolean skipSpecial) {
    return new TextStream(handle, handle.use(text -> Native.streamOpen(text, skipSpecial)));
  }

  /** Gives its memory back; closing it again does nothing, nor does closing a session's. */
  @Override
  public void close() {
    if (!borrowed) handle.close();
  }

  /** Gives its memory back. */
  void free() {
    handle.close();
  }
}
