"""Review drafts in the browser (MAIRA-2, appendix F)."""
