package io.edgekit;

/** A message of a conversation. */
public final class Message {
  private final String role;
  private final String content;

  /**
   * Makes one.
   *
   * @param role "system", "user" or "assistant"
   * @param content its text
   */
  public Message(String role, String content) {
    if (role == null || content == null) throw new NullPointerException("a message has a role and a content");
    this.role = role;
    this.content = content;
  }

  /**
   * Makes one of the user's.
   *
   * @param content its text
   * @return the message
   */
  public static Message user(String content) {
    return new Message("user", content);
  }

  /**
   * Makes one of the model's.
   *
   * @param content its text
   * @return the message
   */
  public static Message assistant(String content) {
    return new Message("assistant", content);
  }

  /**
   * Makes one that stands before the conversation.
   *
   * @param content its text
   * @return the message
   */
  public static Message system(String content) {
    return new Message("system", content);
  }

  /**
   * Says who speaks.
   *
   * @return "system", "user" or "assistant"
   */
  public String role() {
    return role;
  }

  /**
   * Gives its text.
   *
   * @return the text
   */
  public String content() {
    return content;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Message && ((Message) other).role.equals(role) && ((Message) other).content.equals(content);
  }

  @Override
  public int hashCode() {
    return 31 * role.hashCode() + content.hashCode();
  }

  @Override
  public String toString() {
    return role + ": " + content;
  }
}
