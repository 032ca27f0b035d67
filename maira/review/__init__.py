"""Reviewing drafts in the browser (paper 004, appendix F): drafts, images and the corrections of each reviewer."""
