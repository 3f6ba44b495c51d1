package android.text;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public interface Editable extends CharSequence {}
