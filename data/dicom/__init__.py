"""Read radiographs (DICOM, PNG, JPEG) and convert them to 8 bit PNG (MAIRA-2, appendix B.4)."""
