package android.net;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public abstract class Uri {}
